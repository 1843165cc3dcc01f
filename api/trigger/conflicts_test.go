package trigger

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
)

func TestConflictTracker(t *testing.T) {
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "things"}, "x", errors.New("changed"))
	denied := fmt.Errorf("creating: %w", &apierrors.StatusError{ErrStatus: metav1.Status{Code: 409, Message: "admission webhook denied the request"}})
	stale, other := errors.New("changed since it was read"), errors.New("connection refused")
	quota := apierrors.NewConflict(schema.GroupResource{Resource: "resourcequotas"}, "q", errors.New("changed"))
	exists := apierrors.NewAlreadyExists(schema.GroupResource{Resource: "things"}, "x")
	five := []error{denied, denied, denied, denied, denied}
	for name, tt := range map[string]struct {
		answers []error
		want    bool
	}{
		"one":                           {[]error{conflict}, false},
		"five":                          {five, false},
		"six":                           {append(five[:5:5], conflict), true},
		"stale reads between":           {append(five[:5:5], stale, stale, denied), true},
		"a success between":             {append(five[:5:5], nil, denied), false},
		"another error between":         {append(five[:5:5], other, denied), false},
		"one that exists":               {[]error{exists, exists, exists, exists, exists, exists}, true},
		"over a quota":                  {[]error{quota, quota, quota, quota, quota, quota, quota}, false},
		"stale reads only":              {[]error{stale, stale, stale, stale, stale, stale, stale}, false},
		"again after one that lasted":   {append(five[:5:5], denied, denied), true},
		"a success after one that last": {append(five[:5:5], denied, nil, denied), false},
	} {
		t.Run(name, func(t *testing.T) {
			var tracker ConflictTracker
			request, another := ctrl.Request{NamespacedName: types.NamespacedName{Name: "a"}}, ctrl.Request{NamespacedName: types.NamespacedName{Name: "b"}}
			var lasts, expected bool
			for _, err := range tt.answers {
				expected = (IsObjectConflict(err) || apierrors.IsAlreadyExists(err)) && tracker.IsExhausted(request)
				lasts = tracker.Record(request, err, errors.Is(err, stale)) == 0
				assert.Equal(t, expected, lasts)
			}
			assert.Equal(t, tt.want, lasts)
			assert.Equal(t, ConflictRetryDelay, tracker.Record(another, denied, false), "each request has its own count")
			assert.Equal(t, 2*ConflictRetryDelay, tracker.Record(another, denied, false), "a watch may lag behind")
			tracker.Record(request, nil, false)
			tracker.Record(another, nil, false)
			assert.Empty(t, tracker.consecutive)
		})
	}
}
