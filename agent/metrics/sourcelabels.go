package metrics

import (
	"sync"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// sourceLabels bounds the values of label source: a policy has few groups of sources, but over
// time others may take their place. The zero value is ready to use.
type sourceLabels struct {
	mu    sync.Mutex
	known map[string]bool
}

// bound returns the label's value for a group of sources: SourceOther for the groups after the
// first ones.
func (l *sourceLabels) bound(source string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case source == "" || l.known[source]:
	case len(l.known) < v1alpha1.MaxSourceRates:
		if l.known == nil {
			l.known = map[string]bool{v1alpha1.SourceOther: true}
		}
		l.known[source] = true
	default:
		return v1alpha1.SourceOther
	}
	if source == "" {
		return v1alpha1.SourceOther
	}
	return source
}
