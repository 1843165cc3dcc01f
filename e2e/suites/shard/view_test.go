//go:build linux

package shard_test

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
)

// requireReadAPI waits until a replica's read API serves the reports of all members.
func (f *testFleet) requireReadAPI(t *testing.T, r *replica, images int) {
	t.Helper()
	var last any
	require.True(t, testenv.AwaitCondition(t, func() bool {
		all, err := r.ListMembers(t.Context())
		if last = err; err != nil {
			return false
		}
		last = all
		for _, m := range all {
			if m.Unknown != "" || m.Images != images {
				return false
			}
		}
		return len(all) == fakeCount
	}), "replica %s does not serve all members: %+v; logs are in %s", r.name, &last, f.Plane.Dir())
}

func newReportedImage(name string, phase v1alpha1.Phase) v1alpha1.ReportedImage {
	return v1alpha1.ReportedImage{Namespace: "farm", Name: name, UID: "uid", Source: "http https://images.example.com/" + name + ".qcow2", Phase: phase}
}

// reportImage has all members report one image, and returns what each reports.
func (f *testFleet) reportImage(t *testing.T, img v1alpha1.ReportedImage) []v1alpha1.ReportedImage {
	t.Helper()
	images := []v1alpha1.ReportedImage{img}
	for _, m := range f.Fakes.List {
		require.NoError(t, m.SetImages(t.Context(), "page-0", images))
	}
	return images
}

// TestReadAPIOfEveryReplica shows that every replica answers authorized readers with the
// elected replica's view of the fleet. The others have no view and no series of it; the
// next elected replica computes the same view.
func TestReadAPIOfEveryReplica(t *testing.T) {
	shared.awaitBalanced(t, replicaNames...)
	images := shared.reportImage(t, newReportedImage("ubuntu", v1alpha1.PhaseSucceeded))
	nobody, err := shared.Plane.ServiceAccountConfig(t.Context(), "fake-0", "ot-hub")
	require.NoError(t, err)
	elected := shared.electedReplica(t)
	for _, name := range replicaNames {
		r := shared.replicas[name]
		shared.requireReadAPI(t, r, len(images))
		for token, want := range map[string]int{"": http.StatusUnauthorized, nobody.BearerToken: http.StatusForbidden} {
			status, err := r.GetStatus(t.Context(), "/fleet/v1/members", token)
			require.NoError(t, err)
			assert.Equal(t, want, status, name)
		}
		text, err := r.ReadMetrics(t.Context())
		require.NoError(t, err)
		assert.Equal(t, r == elected, strings.Contains(text, "\not_hub_members{"), name)
		assert.Equal(t, r == elected, strings.Contains(text, "\not_hub_index_entries "), name)
	}

	others := shared.otherReplicas(t)
	elected.Kill()
	for _, r := range others {
		// Meanwhile the dead replica holds the Lease, nobody does, or the next one still reads.
		shared.requireReadAPI(t, r, len(images))
	}
	require.NoError(t, shared.startReplica(t.Context(), elected))
	shared.awaitBalanced(t, replicaNames...)
	shared.requireReadAPI(t, elected, len(images))
	shared.judge.requireNoFaults(t)
}

// TestReadAPIFailsOverMidStream: a stream of events through a replica that is not elected ends
// with the elected one. It goes on with the next one, and says that anything may have changed.
func TestReadAPIFailsOverMidStream(t *testing.T) {
	shared.awaitBalanced(t, replicaNames...)
	images := shared.reportImage(t, newReportedImage("debian", v1alpha1.PhaseQueued))
	elected, through := shared.electedReplica(t), shared.otherReplicas(t)[0]
	shared.requireReadAPI(t, through, len(images))
	c, err := through.ReadAPI()
	require.NoError(t, err)
	requireAnswers := func() {
		summary, err := c.Summary(t.Context())
		require.NoError(t, err)
		assert.Equal(t, fakeCount, summary.Members.Total)
		assert.Equal(t, fakeCount, summary.Images.Images)
		m, err := c.Matrix(t.Context(), readapi.MatrixQuery{Rows: readapi.RowsSources})
		require.NoError(t, err)
		require.Len(t, m.Cols, fakeCount)
		require.NotEmpty(t, m.Rows)
		at := slices.IndexFunc(m.Rows, func(r readapi.MatrixRow) bool { return r.Source == images[0].Source })
		assert.Equal(t, readapi.CellQueued, m.At(at, 0).State())
		why, err := c.Why(t.Context(), m.Cols[0].Cluster, "farm", "debian")
		require.NoError(t, err)
		assert.Equal(t, v1alpha1.PhaseQueued, why.Image.Phase)
		h, err := c.History(t.Context(), readapi.HistoryQuery{By: readapi.ByCluster})
		require.NoError(t, err)
		assert.LessOrEqual(t, h.Total, fakeCount)
		blast, err := c.BlastRadius(t.Context(), `{concurrency: "11"}`, 2)
		require.NoError(t, err)
		assert.Equal(t, fakeCount, blast.Changed)
		assert.Len(t, blast.Rows, min(2, fakeCount))
	}
	requireAnswers()

	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cut, killed := false, false
	for e, err := range c.FollowEvents(ctx) {
		switch {
		case err != nil:
			require.True(t, killed, "%v", err)
			cut = true
			continue
		case killed && e.Reset:
		case !killed && len(e.Topics) == 0:
			images[0].Message = "changed"
			require.NoError(t, shared.Fakes.List[0].SetImages(t.Context(), "page-0", append(images, newReportedImage("more", v1alpha1.PhaseQueued))))
			continue
		case !killed && slices.Contains(e.Topics, readapi.TopicImages):
			killed = true
			elected.Kill()
			continue
		default:
			continue
		}
		break
	}
	assert.True(t, cut, "the stream ended with its replica")
	require.NoError(t, ctx.Err(), "after the next one was elected, the stream says that anything may have changed")
	require.NoError(t, shared.Fakes.List[0].SetImages(t.Context(), "page-0", images))
	require.NoError(t, shared.startReplica(t.Context(), elected))
	shared.awaitBalanced(t, replicaNames...)
	shared.requireReadAPI(t, through, len(images))
	requireAnswers()

	// A replica that is stopped ends its streams, and waits for none of them.
	elected = shared.electedReplica(t)
	direct, err := elected.ReadAPI()
	require.NoError(t, err)
	for _, err := range direct.FollowEvents(ctx) {
		if err != nil {
			break
		}
		require.NoError(t, elected.Signal(syscall.SIGTERM))
	}
	require.NoError(t, elected.Wait(), "its grace period ends with an error")
	require.NoError(t, shared.startReplica(t.Context(), elected))
	shared.awaitBalanced(t, replicaNames...)
	shared.judge.requireNoFaults(t)
}
