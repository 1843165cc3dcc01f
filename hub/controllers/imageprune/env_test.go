package imageprune

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/admissionpolicy"
	"github.com/pelotech/ot-fleet/hub/controllers/prunetracker"
	"github.com/pelotech/ot-fleet/hub/controllers/report"
	"github.com/pelotech/ot-fleet/hub/prune"
)

var errRefused = errors.New("the API server does not answer")

// cluster is the stored objects and the reported roots, which outlive a hub.
type cluster struct {
	client.Client
	t     *testing.T
	roots *fakeRoots
	// refuseStatus fails the status writes of ImagePrunes, refusePages the reads of
	// PruneReportPages, refuseReports those of PruneReports.
	refuseStatus, refusePages, refuseReports bool
}

// fakeRoots are the report roots of the members, by the cluster that reports.
type fakeRoots struct {
	synced      bool
	clusterUIDs map[string]types.UID
}

func (r *fakeRoots) HasSynced() bool { return r.synced }

func (r *fakeRoots) Root(member string) report.Root {
	return report.Root{ClusterUID: r.clusterUIDs[member]}
}

func (r *fakeRoots) OnSynced(func()) {}

// newCluster has online members, each of them cluster <name>-cluster.
func newCluster(t *testing.T, members ...string) *cluster {
	t.Helper()
	scheme := runtime.NewScheme()
	require.NoError(t, errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)))
	c := &cluster{t: t, roots: &fakeRoots{synced: true, clusterUIDs: map[string]types.UID{}}}
	c.Client = fake.NewClientBuilder().WithScheme(scheme).
		WithStatusSubresource(&v1alpha1.MemberCluster{}, &v1alpha1.PruneReport{}, &v1alpha1.ImagePrune{}).
		WithInterceptorFuncs(interceptor.Funcs{
			Get: func(ctx context.Context, from client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
				if problems := content.IsPathSegmentName(key.Name); len(problems) > 0 {
					return fmt.Errorf("invalid resource name %q: %v", key.Name, problems) // as client-go does
				}
				_, isPage := o.(*v1alpha1.PruneReportPage)
				_, isReport := o.(*v1alpha1.PruneReport)
				if isPage && c.refusePages || isReport && c.refuseReports {
					return errRefused
				}
				return from.Get(ctx, key, o, options...)
			},
			SubResourceUpdate: func(ctx context.Context, to client.Client, subresource string, o client.Object, options ...client.SubResourceUpdateOption) error {
				if _, ok := o.(*v1alpha1.ImagePrune); ok && c.refuseStatus {
					return errRefused
				}
				return to.SubResource(subresource).Update(ctx, o, options...)
			},
		}).Build()
	for _, name := range members {
		require.NoError(t, c.Create(t.Context(), &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: name}}))
		c.setCluster(name, types.UID(name+"-cluster"))
	}
	return c
}

// setCluster changes which cluster a member is; see also fakeRoots.
func (c *cluster) setCluster(name string, uid types.UID) {
	c.t.Helper()
	m := &v1alpha1.MemberCluster{}
	require.NoError(c.t, c.Get(c.t.Context(), client.ObjectKey{Name: name}, m))
	m.Status.ClusterUID = uid
	m.Status.Conditions = nil
	for _, condition := range []string{v1alpha1.ConditionIdentityConfirmed, v1alpha1.ConditionAgentHealthy} {
		m.Status.Conditions = append(m.Status.Conditions, metav1.Condition{
			Type: condition, Status: metav1.ConditionTrue, Reason: "Test", LastTransitionTime: metav1.NewTime(apitest.Epoch),
		})
	}
	require.NoError(c.t, c.Status().Update(c.t.Context(), m))
	c.roots.clusterUIDs[name] = uid
}

// createReport stores a complete PruneReport whose candidates are the same images in
// each member.
func (c *cluster) createReport(name string, members []string, images ...string) *v1alpha1.PruneReport {
	c.t.Helper()
	clusters := make([]v1alpha1.ReportedCluster, len(members))
	for i, member := range members {
		clusters[i] = v1alpha1.ReportedCluster{Cluster: member, ClusterUID: types.UID(member + "-cluster")}
		for _, image := range images {
			clusters[i].Candidates = append(clusters[i].Candidates, v1alpha1.PruneCandidate{
				Namespace: "farm", Name: image, UID: types.UID(image + "-image"), Origin: v1alpha1.OriginPlan, Revision: "revision",
			})
		}
	}
	r := &v1alpha1.PruneReport{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name + "-report")}}
	require.NoError(c.t, c.Create(c.t.Context(), r))
	pages, digest, err := prune.Paginate(r.UID, clusters)
	require.NoError(c.t, err)
	for n, page := range pages {
		require.NoError(c.t, c.Create(c.t.Context(), &v1alpha1.PruneReportPage{ObjectMeta: metav1.ObjectMeta{Name: prune.PageName(name, digest, n)}, Clusters: page}))
	}
	r.Status.StartedAt = &metav1.Time{Time: apitest.Epoch}
	r.Status = prune.CompleteStatus(r, clusters, len(pages), digest, apitest.Epoch)
	require.NoError(c.t, c.Status().Update(c.t.Context(), r))
	return r
}

// createPrune creates an ImagePrune of all candidates of a report.
func (c *cluster) createPrune(name string, of *v1alpha1.PruneReport) {
	c.t.Helper()
	require.NoError(c.t, c.Create(c.t.Context(), &v1alpha1.ImagePrune{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name + "-prune"), CreationTimestamp: metav1.NewTime(apitest.Epoch)},
		Spec: v1alpha1.ImagePruneSpec{
			ReportRef: v1alpha1.PruneReportRef{Name: of.Name, Digest: of.Status.Digest}, ApprovedBy: "somebody",
			UndoWindow: &metav1.Duration{Duration: time.Hour}, Deadline: &metav1.Duration{Duration: time.Hour},
		},
	}))
}

func (c *cluster) getPrune(name string) *v1alpha1.ImagePrune {
	c.t.Helper()
	p := &v1alpha1.ImagePrune{}
	require.NoError(c.t, c.Get(c.t.Context(), client.ObjectKey{Name: name}, p))
	return p
}

func (c *cluster) getPage(of *v1alpha1.PruneReport) *v1alpha1.PruneReportPage {
	c.t.Helper()
	page := &v1alpha1.PruneReportPage{}
	require.NoError(c.t, c.Get(c.t.Context(), client.ObjectKey{Name: prune.PageName(of.Name, of.Status.Digest, 0)}, page))
	return page
}

// hub is the memory of a hub. Another one is the restarted hub.
type hub struct {
	*Reconciler
	cluster *cluster
}

// startHub returns a hub that was elected when some ImagePrunes were stored. Its
// reconciles are not throttled.
func (c *cluster) startHub(stored ...string) *hub {
	h := &hub{cluster: c, Reconciler: &Reconciler{
		Client: c, Live: c, Events: events.NewFakeRecorder(100), Tracker: prunetracker.New(), Roots: c.roots,
		Approvals: &admissionpolicy.ApprovalCheck{Live: c, Enforced: true},
	}}
	var expected []prunetracker.Object
	for _, name := range stored {
		expected = append(expected, prunetracker.Object{Kind: prunetracker.KindPrune, Name: name})
	}
	h.Tracker.ExpectStored(expected)
	return h
}

func (h *hub) reconcileErr(name string) error {
	_, err := h.Reconcile(h.cluster.t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: name}})
	return err
}

// reconcilePrune reconciles an ImagePrune and returns what is stored then.
func (h *hub) reconcilePrune(name string) *v1alpha1.ImagePrune {
	h.cluster.t.Helper()
	require.NoError(h.cluster.t, h.reconcileErr(name))
	return h.cluster.getPrune(name)
}

// requested returns the UIDs of the images that a member is asked to prune.
func (h *hub) requested(member string) (images []types.UID) {
	h.cluster.t.Helper()
	_, prunes, known := h.Tracker.ForMember(member)
	require.True(h.cluster.t, known)
	for _, p := range prunes {
		images = append(images, p.ImageUID)
	}
	return images
}

// report reports the states of pruned images of a member.
func (h *hub) report(member string, pruneUID types.UID, states map[string]v1alpha1.PruneState) {
	var images []v1alpha1.ReportedImage
	for name, state := range states {
		images = append(images, v1alpha1.ReportedImage{Namespace: "farm", Name: name, Prune: &v1alpha1.ReportedPrune{
			PruneStatus: v1alpha1.PruneStatus{UID: pruneUID, State: state}, ImageUID: types.UID(name + "-image"),
		}})
	}
	h.Tracker.SetRoot(member, &v1alpha1.ReportRoot{Pages: []v1alpha1.PageRef{{Name: "page"}}})
	h.Tracker.SetPage(member, "page", 1, images)
}
