// Package collision has a name that another package has.
package collision

import "github.com/pelotech/ot-fleet/scripts/typescript/testdata/answers"

// Base is another one.
type Base struct {
	Of answers.Base `json:"of"`
}
