package command

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/connect"
	"github.com/pelotech/ot-fleet/cli/exit"
	"github.com/pelotech/ot-fleet/cli/render"
	"github.com/pelotech/ot-fleet/cli/rollout"
)

// lateYes says yes, once something else has happened while the question was open.
type lateYes struct {
	meanwhile func()
	text      io.Reader
}

func (a *lateYes) Read(p []byte) (int, error) {
	if a.meanwhile != nil {
		a.meanwhile()
		a.meanwhile = nil
	}
	return a.text.Read(p)
}

// question is win-11 24.2, of which wave canary awaits approval, and an environment in which a
// person is asked.
type question struct {
	*environment
	t   *testing.T
	hub *connect.Cluster
	out *bytes.Buffer
}

func newQuestion(t *testing.T, meanwhile func(*question)) *question {
	img := apitest.FleetDiskImage("win-11").WithVersion("24.2").WithFormer("24.2", "24.1").WithWaves(
		v1alpha1.Wave{Name: "canary", RequireApproval: true}, v1alpha1.Wave{Name: "production", RequireApproval: true}).Obj()
	img.ResourceVersion, img.Generation = "", 1
	img.Spec.Approvals = []v1alpha1.Approval{}
	img.Status.ObservedGeneration, img.Status.Phase, img.Status.Reason = 1, v1alpha1.RolloutWaiting, v1alpha1.ReasonAwaitingApproval
	img.Status.CurrentWave = "canary"
	for i := range img.Status.Versions {
		img.Status.Versions[i].Template = img.Spec.Template.SourceFields()
	}
	q := &question{t: t, out: &bytes.Buffer{}}
	q.hub = &connect.Cluster{Client: fake.NewClientBuilder().WithScheme(connect.Scheme).WithObjects(img).Build()}
	in := &lateYes{text: strings.NewReader("y\n")}
	if meanwhile != nil {
		in.meanwhile = func() { meanwhile(q) }
	}
	format, err := render.ParseFormat("")
	require.NoError(t, err)
	q.environment = &environment{IOStreams: genericiooptions.IOStreams{In: in, Out: q.out, ErrOut: q.out}, Flags: connect.NewFlags(), now: time.Now, format: format}
	return q
}

func (q *question) get() *v1alpha1.FleetDiskImage {
	q.t.Helper()
	img, err := getFleetImage(q.t.Context(), q.hub, "win-11")
	require.NoError(q.t, err)
	return img
}

func (q *question) update(change func(*v1alpha1.FleetDiskImage)) {
	q.t.Helper()
	img := q.get()
	change(img)
	require.NoError(q.t, q.hub.Client.Update(q.t.Context(), img))
}

func (q *question) approve() error {
	return q.environment.approve(q.t.Context(), q.hub, "win-11", func(img *v1alpha1.FleetDiskImage, shown *rollout.Approval) (*rollout.Approval, error) {
		return decideApproval(img, nil, shown, nil, false, "", "bert", time.Now())
	}, false, false)
}

func (q *question) goBack() error {
	return q.changeRollout(q.t.Context(), q.hub, "win-11", change{
		ask: func(*rollout.Action) string { return "Go back?" },
		do: func(img *v1alpha1.FleetDiskImage) (*rollout.Action, error) {
			return rollout.Abort(img, "24.1", rollout.Caller{Name: "anna"}, "", time.Now())
		},
	})
}

func TestApprovalIsOfWhatWasShown(t *testing.T) {
	t.Run("nothing happens", func(t *testing.T) {
		q := newQuestion(t, nil)
		require.NoError(t, q.approve())
		require.Len(t, q.get().Spec.Approvals, 1)
		assert.Equal(t, "canary", q.get().Spec.Approvals[0].Wave)
		assert.Equal(t, "bert", q.get().Spec.Approvals[0].By)
	})
	t.Run("the rollout goes on to another wave", func(t *testing.T) {
		q := newQuestion(t, func(q *question) {
			q.update(func(img *v1alpha1.FleetDiskImage) {
				img.Spec.Approvals = []v1alpha1.Approval{{Wave: "canary", Version: "24.2", By: "anna"}}
				img.Status.CurrentWave = "production"
			})
		})
		require.NoError(t, q.approve())
		assert.Contains(t, q.out.String(), "wave canary of win-11 24.2 is approved already, by anna")
		require.Len(t, q.get().Spec.Approvals, 1, "production was not shown")
	})
	t.Run("another person approves of another wave", func(t *testing.T) {
		q := newQuestion(t, func(q *question) {
			q.update(func(img *v1alpha1.FleetDiskImage) {
				img.Spec.Approvals = []v1alpha1.Approval{{Wave: "production", Version: "24.2", By: "anna"}}
			})
		})
		require.NoError(t, q.approve())
		assert.Len(t, q.get().Spec.Approvals, 2, "no approval is lost")
	})
	t.Run("the version is replaced", func(t *testing.T) {
		q := newQuestion(t, func(q *question) {
			q.update(func(img *v1alpha1.FleetDiskImage) { img.Spec.Version = "24.3" })
		})
		err := q.approve()
		assert.Equal(t, exit.No, exit.CodeOf(err))
		require.ErrorContains(t, err, "is at version 24.3 now: review it again")
		assert.Empty(t, q.get().Spec.Approvals)
	})
}

func TestAbortIsOfWhatWasShown(t *testing.T) {
	q := newQuestion(t, nil)
	require.NoError(t, q.goBack())
	assert.Equal(t, "24.1", q.get().Spec.Version)
	for name, change := range map[string]func(*v1alpha1.FleetDiskImage){
		"a hotfix is published": func(img *v1alpha1.FleetDiskImage) { img.Spec.Version = "24.3" },
		"it is paused":          func(img *v1alpha1.FleetDiskImage) { img.Spec.Rollout.Paused = true },
		"its source changes":    func(img *v1alpha1.FleetDiskImage) { img.Spec.Template.URL += "x" },
	} {
		t.Run(name, func(t *testing.T) {
			q := newQuestion(t, func(q *question) { q.update(change) })
			err := q.goBack()
			assert.Equal(t, exit.No, exit.CodeOf(err))
			require.ErrorContains(t, err, "has changed since it was shown")
			assert.NotEqual(t, "24.1", q.get().Spec.Version)
		})
	}
}
