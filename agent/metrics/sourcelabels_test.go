package metrics

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// A policy has at most one group less than there are rates, which have SourceOther, too.
func TestEachGroupOfAPolicyHasItsLabel(t *testing.T) {
	var labels sourceLabels
	assert.Equal(t, v1alpha1.SourceOther, labels.bound(""))
	for n := range v1alpha1.MaxSourceRates - 1 {
		name := fmt.Sprint("group-", n)
		assert.Equal(t, name, labels.bound(name))
	}
	assert.Equal(t, v1alpha1.SourceOther, labels.bound("one-more"))
	assert.Equal(t, "group-0", labels.bound("group-0"))
}
