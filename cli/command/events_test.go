package command

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/connect"
	"github.com/pelotech/ot-fleet/cli/events"
	"github.com/pelotech/ot-fleet/cli/exit"
	"github.com/pelotech/ot-fleet/cli/render"
)

// TestEventsWhileAMemberIsUnread: a member that is not read has the events that it had.
func TestEventsWhileAMemberIsUnread(t *testing.T) {
	event := func(side, name string) events.Source {
		at := metav1.Date(2026, 3, 2, 16, 0, 0, 0, time.UTC)
		return events.Source{Side: side, Events: []corev1.Event{{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), CreationTimestamp: at}, Reason: name}}}
	}
	both := func() ([]events.Source, []string) {
		return []events.Source{event("hub", "Published"), event("bergen", "Imported")}, nil
	}
	hubAlone := func(why string) func() ([]events.Source, []string) {
		return func() ([]events.Source, []string) {
			return []events.Source{event("hub", "Published")}, []string{"bergen: " + why}
		}
	}
	for name, test := range map[string]struct {
		looks    []func() ([]events.Source, []string)
		want     map[string]int
		wantTold string
	}{
		"all is read":         {looks: []func() ([]events.Source, []string){both, both}, want: map[string]int{"Published": 1, "Imported": 1}},
		"one read fails":      {looks: []func() ([]events.Source, []string){both, hubAlone("timeout"), both}, want: map[string]int{"Published": 1, "Imported": 1}, wantTold: "bergen: timeout\nall events are read again\n"},
		"reads go on failing": {looks: []func() ([]events.Source, []string){hubAlone("timeout"), hubAlone("timeout"), hubAlone("refused"), both}, want: map[string]int{"Published": 1, "Imported": 1}, wantTold: "bergen: timeout\nbergen: refused\nall events are read again\n"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e, out, errOut := newTestEnvironment("")
				e.watching = true
				n := 0
				err := e.showEvents(t.Context(), "ubuntu", 0, time.Duration(len(test.looks))*watchInterval-1, func(context.Context) ([]events.Source, []string, error) {
					sources, unread := test.looks[n]()
					n++
					return sources, unread, nil
				})
				assert.Equal(t, exit.NotYet, exit.CodeOf(err))
				assert.Len(t, test.looks, n)
				for reason, times := range test.want {
					assert.Equal(t, times, strings.Count(out.String(), reason), "%s in\n%s", reason, out)
				}
				assert.Equal(t, test.wantTold, errOut.String())
			})
		})
	}
}

// Versions from before spec.targetNamespace or spec.imageName changed keep their images' names.
func TestEventsOfFormerVersions(t *testing.T) {
	of := apitest.FleetDiskImage("ubuntu").WithVersion("2.1.0").Obj()
	of.Spec.TargetNamespace, of.Spec.ImageName = "farm", "noble"
	of.Status.Versions = []v1alpha1.VersionStatus{
		{Version: "2.1.0", Namespace: "farm", Image: "noble-2.1.0"}, {Version: "2.0.3", Namespace: "images", Image: "ubuntu-2.0.3"},
	}
	assert.Equal(t, []client.ObjectKey{{Namespace: "farm", Name: "noble-2.1.0"}, {Namespace: "images", Name: "ubuntu-2.0.3"}}, imagesOf(of))
}

// Who may read only some of an image's namespaces has what is recorded there.
func TestEventsOfANamespaceThatMayNotBeRead(t *testing.T) {
	of := apitest.FleetDiskImage("ubuntu").WithVersion("2.1.0").Obj()
	of.Spec.TargetNamespace = "farm"
	var objects []client.Object
	for _, key := range []client.ObjectKey{{Namespace: "farm", Name: "ubuntu-2.1.0"}, {Namespace: "farm", Name: "ubuntu-2.0.4"}, {Namespace: "images", Name: "ubuntu-2.0.4"}, {Namespace: "images", Name: "ubuntu-2.0.3"}} {
		of.Status.Versions = append(of.Status.Versions, v1alpha1.VersionStatus{Namespace: key.Namespace, Image: key.Name})
		objects = append(objects, apitest.Image(key.String()).Obj(), &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name},
			InvolvedObject: corev1.ObjectReference{Kind: "VMDiskImage", Namespace: key.Namespace, Name: key.Name},
		})
	}
	for name, test := range map[string]struct {
		forbidden  []string
		wantEvents []string
		wantUnread []string
		wantError  string
	}{
		"all may be read": {wantEvents: []string{"farm", "farm", "images", "images"}},
		"the current one": {forbidden: []string{"images"}, wantEvents: []string{"farm", "farm"}, wantUnread: []string{"frankfurt, namespace images: "}},
		"a former one":    {forbidden: []string{"farm"}, wantEvents: []string{"images", "images"}, wantUnread: []string{"frankfurt, namespace farm: "}},
		"none":            {forbidden: []string{"farm", "images"}, wantUnread: []string{"frankfurt, namespace farm: ", "frankfurt, namespace images: "}, wantError: "forbidden"},
	} {
		t.Run(name, func(t *testing.T) {
			refuse := interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
				if slices.Contains(test.forbidden, key.Namespace) {
					return apierrors.NewForbidden(schema.GroupResource{Group: v1alpha1.GroupVersion.Group, Resource: "vmdiskimages"}, key.Name, nil)
				}
				return c.Get(ctx, key, o, options...)
			}}
			member := &connect.Cluster{Context: "frankfurt", Client: fake.NewClientBuilder().WithScheme(connect.Scheme).WithObjects(objects...).WithInterceptorFuncs(refuse).Build()}
			sources, unread, err := readMemberImageEvents(t.Context(), member, of, "ubuntu")
			if test.wantError == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, test.wantError)
			}
			var read []string
			for _, source := range sources {
				assert.NotContains(t, test.forbidden, source.Namespace, "a stream forgets what a source no longer has")
				for _, event := range source.Events {
					read = append(read, event.Namespace)
				}
			}
			assert.Equal(t, test.wantEvents, read)
			require.Len(t, unread, len(test.wantUnread))
			for i := range unread {
				assert.Contains(t, unread[i], test.wantUnread[i])
			}
		})
	}
}

// A namespace is that of an image: events of a whole cluster would look like those of it alone.
func TestEventsOfAClusterRefuseANamespace(t *testing.T) {
	e, _, _ := newTestEnvironment("")
	e.Flags = connect.NewFlags()
	*e.Namespace = "farm"
	_, err := e.gatherClusterEvents(t.Context(), "bergen")
	assert.EqualError(t, err, "-n farm: bergen is a cluster, which has no namespace: leave it out")
}

// Each event of a stream is as safe as a whole answer.
func TestStreamedEventsAreSafeForATerminal(t *testing.T) {
	for output, want := range map[string]string{"": "a\ufffd2J\ufffd", "json": `"note":"a\u009b2J\u202e"`, "yaml": `note: "a\x9B2J` + "\ufffd"} {
		t.Run(output, func(t *testing.T) {
			e, out, _ := newTestEnvironment("")
			var err error
			e.format, err = render.ParseFormat(output)
			require.NoError(t, err)
			require.NoError(t, e.printEvents([]events.Event{{Note: "a\u009b2J\u202e"}}, true))
			assert.Contains(t, out.String(), want)
			assert.Equal(t, render.Printable(out.String()), out.String())
		})
	}
}
