package command

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/connect"
	"github.com/pelotech/ot-fleet/cli/events"
	"github.com/pelotech/ot-fleet/cli/exit"
	"github.com/pelotech/ot-fleet/cli/render"
	"github.com/pelotech/ot-fleet/cli/rollout"
	"github.com/pelotech/ot-fleet/cli/versions"
)

// readDocuments reads a stream of YAML or JSON, as consumers of -w do.
func readDocuments(t *testing.T, out *bytes.Buffer) (all []map[string]any) {
	decoder := yaml.NewYAMLOrJSONDecoder(out, 4096)
	for {
		document := map[string]any{}
		err := decoder.Decode(&document)
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err)
		all = append(all, document)
	}
}

// TestWatchedAnswersAreParsed: each answer of -w is a document of its own.
func TestWatchedAnswersAreParsed(t *testing.T) {
	for _, output := range []string{"json", "yaml"} {
		t.Run(output, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e, out, _ := newTestEnvironment("")
				var err error
				e.format, err = render.ParseFormat(output)
				require.NoError(t, err)
				polled := []string{"v1", "v1", "v2", "v3"}
				n := 0
				require.NoError(t, e.watch(t.Context(), noTimeout, func(context.Context) (watchState, error) {
					n++
					return watchState{view: versions.New(versions.Snapshot{Client: polled[n-1]}), end: n == len(polled)}, nil
				}))
				assert.Equal(t, map[string]int{"yaml": 2}[output], bytes.Count(out.Bytes(), []byte("---\n")), out.String())
				documents := readDocuments(t, out)
				assert.Len(t, documents, 3)
				for _, document := range documents {
					assert.Equal(t, "Versions", document["kind"])
				}
			})
			synctest.Test(t, func(t *testing.T) {
				e, out, _ := newTestEnvironment("")
				e.watching = true
				var err error
				e.format, err = render.ParseFormat(output)
				require.NoError(t, err)
				source := events.Source{Side: "hub"}
				err = e.showEvents(t.Context(), "ubuntu", 0, 3*watchInterval-1, func(context.Context) ([]events.Source, []string, error) {
					name := []string{"a", "b", "c"}[len(source.Events)]
					source.Events = append(source.Events, corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(time.Now())}, Reason: name})
					return []events.Source{source}, nil, nil
				})
				require.Error(t, err)
				var reasons []any
				for _, document := range readDocuments(t, out) {
					reasons = append(reasons, document["reason"])
				}
				assert.Equal(t, []any{"a", "b", "c"}, reasons)
			})
		})
	}
}

// TestTimeoutOfAPIServersThatHang: what has no context of its own does not outlast --timeout.
func TestTimeoutOfAPIServersThatHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _, _ := newTestEnvironment("")
		begun, released := time.Now(), make(chan struct{})
		defer close(released)
		err := e.watch(t.Context(), 5*time.Second, func(context.Context) (watchState, error) {
			<-released
			return watchState{}, nil
		})
		assert.Equal(t, exit.NotYet, exit.CodeOf(err))
		require.ErrorContains(t, err, "not within 5s: the API server does not answer")
		assert.Equal(t, 5*time.Second+withinGrace, time.Since(begun))
	})
	synctest.Test(t, func(t *testing.T) {
		e, _, _ := newTestEnvironment("")
		err := e.watch(t.Context(), 5*time.Second, func(ctx context.Context) (watchState, error) {
			<-ctx.Done()
			return watchState{}, errors.New("context hub: too late")
		})
		assert.Equal(t, exit.NotYet, exit.CodeOf(err))
		require.ErrorContains(t, err, "not within 5s: context hub: too late")
	})
}

// TestTimeoutOfEventsOfAPIServersThatHang: neither who it is of, nor a later read, outlasts --timeout.
func TestTimeoutOfEventsOfAPIServersThatHang(t *testing.T) {
	for name, hangs := range map[string]int{"at first": 1, "later": 2} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e, _, _ := newTestEnvironment("")
				e.watching = true
				begun, released, reads := time.Now(), make(chan struct{}), 0
				defer close(released)
				err := e.showEvents(t.Context(), "ubuntu", 0, 5*time.Second, func(context.Context) ([]events.Source, []string, error) {
					if reads++; reads == hangs {
						<-released
					}
					return nil, nil, nil
				})
				assert.Equal(t, exit.NotYet, exit.CodeOf(err))
				assert.Equal(t, 5*time.Second+withinGrace, time.Since(begun))
			})
		})
	}
}

// summary is a View with more in its JSON than in its line.
type summary struct {
	Line  string `json:"line"`
	Trend int    `json:"trend"`
}

func (s summary) Draw(p *render.Page) { p.Line(render.Text("%s", s.Line)) }
func (s summary) Summary() string     { return s.Line }

// TestWatchedColumnsChange: what the format leaves out, as when a cluster reported last, prints nothing again.
func TestWatchedColumnsChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, out, _ := newTestEnvironment("")
		var err error
		e.format, err = render.ParseFormat("custom-columns=KIND:.kind")
		require.NoError(t, err)
		polled := []string{"v1", "v2", "v3"}
		n := 0
		require.NoError(t, e.watch(t.Context(), noTimeout, func(context.Context) (watchState, error) {
			n++
			return watchState{view: versions.New(versions.Snapshot{Client: polled[n-1]}), end: n == len(polled)}, nil
		}))
		assert.Equal(t, "KIND\nVersions\n", out.String())
	})
}

// TestWatchedLinesChange: a line is printed once, whatever changes that it does not say.
func TestWatchedLinesChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, out, _ := newTestEnvironment("")
		e.now = time.Now
		polled := []summary{{"a", 1}, {"a", 2}, {"b", 2}, {"b", 3}, {"a", 3}}
		n := 0
		require.NoError(t, e.watch(t.Context(), noTimeout, func(context.Context) (watchState, error) {
			n++
			return watchState{view: polled[n-1], end: n == len(polled)}, nil
		}))
		at := time.Now().Add(-time.Duration(len(polled)-1) * watchInterval)
		want := ""
		for i, line := range map[int]string{0: "a", 2: "b", 4: "a"} {
			assert.Contains(t, out.String(), at.Add(time.Duration(i)*watchInterval).Format(time.TimeOnly)+"  "+line+"\n")
			want += line
		}
		assert.Equal(t, len(want), bytes.Count(out.Bytes(), []byte("\n")), out.String())
	})
}

// TestTimeoutOfZeroLooksOnce: a timeout that is over before the first answer does not keep it from
// being judged.
func TestTimeoutOfZeroLooksOnce(t *testing.T) {
	for name, test := range map[string]struct {
		end  bool
		code exit.Code
		want exit.Code
	}{
		"it has ended": {true, exit.No, exit.No},
		"it goes on":   {false, exit.Yes, exit.NotYet},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e, out, _ := newTestEnvironment("")
				begun, looks := time.Now(), 0
				err := e.watch(t.Context(), 0, func(ctx context.Context) (watchState, error) {
					looks++
					_ = trigger.Sleep(ctx, time.Second)
					return watchState{view: summary{Line: "a"}, code: test.code, end: test.end}, ctx.Err()
				})
				assert.Equal(t, test.want, exit.CodeOf(err))
				assert.Empty(t, exit.MessageOf(err))
				assert.Contains(t, out.String(), "  a\n")
				assert.Equal(t, 1, looks)
				assert.Equal(t, time.Second, time.Since(begun))
			})
		})
	}
	for name, test := range map[string]struct {
		change func(*v1alpha1.FleetDiskImage)
		want   exit.Code
		note   string
	}{
		"ready":       {func(i *v1alpha1.FleetDiskImage) { i.Status.Phase = v1alpha1.RolloutSucceeded }, exit.Yes, "Succeeded"},
		"in progress": {func(i *v1alpha1.FleetDiskImage) { i.Status.Phase = v1alpha1.RolloutProgressing }, exit.NotYet, "not within 0s: ubuntu 1.0.0 is Progressing"},
	} {
		t.Run("image wait, "+name, func(t *testing.T) {
			img := apitest.FleetDiskImage("ubuntu").Obj()
			img.Status.ObservedGeneration = img.Generation
			test.change(img)
			hub := &connect.Cluster{Client: fake.NewClientBuilder().WithScheme(connect.Scheme).WithObjects(img).Build()}
			e, _, errOut := newTestEnvironment("")
			err := e.waitForRollout(t.Context(), hub, "ubuntu", rollout.Goal{Kind: rollout.GoalReady}, rollout.Want{})
			assert.Equal(t, test.want, exit.CodeOf(err))
			assert.Contains(t, errOut.String(), test.note)
		})
	}
}

// several is a View of several, by name.
type several map[string]string

func (s several) Draw(p *render.Page) { p.Line(render.Text("%d", len(s))) }

func (s several) WatchItems() (items []render.Item) {
	for _, key := range slices.Sorted(maps.Keys(s)) {
		items = append(items, render.Item{Key: strings.TrimSuffix(key, "'"), State: render.Words(s[key])})
	}
	return items
}

// TestWatchedItemsChange: a line for each that changes, for example where one of two of a name does, and for each
// that is gone. What was asked for and goes is told once, and may come back.
func TestWatchedItemsChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, out, errOut := newTestEnvironment("")
		e.now = time.Now
		gone := errors.New("not found: c")
		polled := []watchState{
			{view: several{"a": "1", "b": "1", "b'": "1", "c": "1"}}, {view: several{"a": "1", "b": "1", "b'": "2", "c": "1"}}, {view: several{"a": "2", "b": "1", "b'": "2"}, lack: gone},
			{view: several{"a": "3", "b": "1"}, lack: gone}, {view: several{"a": "3", "b": "1", "c": "1"}, end: true},
		}
		n := 0
		require.NoError(t, e.watch(t.Context(), noTimeout, func(context.Context) (watchState, error) {
			n++
			return polled[n-1], nil
		}))
		var lines []string
		for line := range strings.Lines(out.String()) {
			lines = append(lines, strings.TrimSpace(line[len(time.TimeOnly):]))
		}
		assert.Equal(t, []string{"a  1", "b  1", "b  1", "c  1", "b  2", "a  2", "c  no longer listed", "a  3", "b  no longer listed", "c  1"}, lines)
		assert.Equal(t, "not found: c; trying again\n", errOut.String())
	})
	e, out, _ := newTestEnvironment("")
	err := e.watch(t.Context(), noTimeout, func(context.Context) (watchState, error) {
		return watchState{view: several{}, lack: errors.New("not found: c")}, nil
	})
	require.EqualError(t, err, "not found: c", "which may be mistyped")
	assert.Empty(t, out.String())
}

// TestScreensAreWatched goes through all commands: those that show what changes have -w, and the rest
// watches by other commands.
func TestScreensAreWatched(t *testing.T) {
	var watched []string
	root, _ := newCompletedRoot()
	for _, cmd := range allCommands(root) {
		if cmd.Flags().Lookup("watch") != nil {
			watched = append(watched, strings.TrimPrefix(cmd.CommandPath(), "kubectl ot "))
		}
	}
	assert.Subset(t, watched, []string{
		"status", "fleet status", "why image", "why machine", "why rollout", "why cluster", "rollout status", "events",
		"get clusters", "get rollouts", "get images", "get machines", "tree image", "tree machine", "tree rollout", "image where", "policy show",
	})
}
