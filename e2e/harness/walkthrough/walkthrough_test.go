//go:build linux

package walkthrough

import (
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestEveryCommandIsRunOrListed wants a command that is neither to be found, as well as an entry of
// the list that has become void.
func TestEveryCommandIsRunOrListed(t *testing.T) {
	makes, helms := regexp.MustCompile(`^make `), regexp.MustCompile(`^helm `)
	for _, test := range []struct {
		left, wantUnlisted []string
		wantUnused         []*regexp.Regexp
	}{
		{nil, nil, []*regexp.Regexp{makes, helms}},
		{[]string{"make demo", "helm test ot-hub", "make test"}, nil, nil},
		{[]string{"make demo", "kubectl get fdi"}, []string{"kubectl get fdi"}, []*regexp.Regexp{helms}},
	} {
		unlisted, unused := compareWithList(test.left, []*regexp.Regexp{makes, helms})
		assert.ElementsMatch(t, test.wantUnlisted, unlisted)
		assert.ElementsMatch(t, test.wantUnused, unused)
	}
}
