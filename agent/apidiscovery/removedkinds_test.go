package apidiscovery

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/pelotech/ot-fleet/api/trigger"
)

// A kind that is removed is no longer served, once that is sure, and is served again without its
// callbacks: live reads of it fail for all images meanwhile.
func TestRemovedKindIsNoticed(t *testing.T) {
	gvk := schema.GroupVersionKind{Group: "cdi.kubevirt.io", Version: "v1beta1", Kind: "DataVolume"}
	resources := func(groupVersion string, kinds ...string) []*metav1.APIResourceList {
		list := &metav1.APIResourceList{GroupVersion: groupVersion}
		for _, kind := range kinds {
			list.APIResources = append(list.APIResources, metav1.APIResource{Kind: kind})
		}
		return []*metav1.APIResourceList{list}
	}
	present := resources("cdi.kubevirt.io/v1beta1", "DataSource", "DataVolume")
	for name, tt := range map[string]struct {
		answer []*metav1.APIResourceList
		err    error
		// lasts is how long it is the answer; 0 for good.
		lasts      time.Duration
		wantServed bool
	}{
		"nothing changes":              {present, nil, 0, true},
		"its CRD is removed":           {resources("cdi.kubevirt.io/v1beta1", "DataSource"), nil, 0, false},
		"the whole group is removed":   {nil, nil, 0, false},
		"one answer of a late server":  {nil, nil, recheckInterval + discoveryInterval - time.Second, true},
		"it has another version only":  {resources("cdi.kubevirt.io/v1", "DataVolume"), nil, 0, true},
		"the API server does not know": {nil, errors.New("503"), 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				var mu sync.Mutex
				var answerErr error
				asked := 0
				d := &fake.FakeDiscovery{Fake: &clienttesting.Fake{Resources: present}}
				d.AddReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
					mu.Lock()
					defer mu.Unlock()
					asked++
					return answerErr != nil, nil, answerErr
				})
				answer := func(list []*metav1.APIResourceList, err error) {
					mu.Lock()
					defer mu.Unlock()
					d.Resources, answerErr = list, err
				}
				mapper := meta.NewDefaultRESTMapper(nil)
				mapper.Add(gvk, meta.RESTScopeNamespace)
				kinds := NewKindTracker(mapper)
				called, changes := 0, 0
				kinds.WhenServed(gvk, func(context.Context) error { called++; return nil })
				kinds.Recheck(d, func(context.Context) { changes++ })
				ended := make(chan error)
				go func() { ended <- kinds.Start(ctx) }()
				synctest.Wait()
				assert.True(t, kinds.IsServed(gvk))

				answer(tt.answer, tt.err)
				if tt.lasts > 0 {
					require.NoError(t, trigger.Sleep(ctx, tt.lasts))
					answer(present, nil)
				}
				require.NoError(t, trigger.Sleep(ctx, recheckInterval+3*discoveryInterval))
				assert.Equal(t, tt.wantServed, kinds.IsServed(gvk))
				answer(present, nil)
				require.NoError(t, trigger.Sleep(ctx, 2*discoveryInterval))
				assert.True(t, kinds.IsServed(gvk), "it is installed again")
				assert.Equal(t, 1, called, "its watch goes on")
				if tt.wantServed {
					assert.Zero(t, changes)
				} else {
					assert.Equal(t, 2, changes)
				}
				mu.Lock()
				asked = 0
				mu.Unlock()
				require.NoError(t, trigger.Sleep(ctx, 10*recheckInterval))
				mu.Lock()
				assert.LessOrEqual(t, asked, 11, "once a minute")
				mu.Unlock()
				cancel()
				require.NoError(t, <-ended)
			})
		})
	}
}
