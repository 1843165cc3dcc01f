// Package report reads the hub's copies of the members' reports and maintains the
// inventory of the fleet's images. It runs in the elected replica only: the reports of a
// whole fleet are too large to be held by each replica.
package report

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/mailbox"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/heartbeat"
	"github.com/pelotech/ot-fleet/hub/inventory"
	"github.com/pelotech/ot-fleet/hub/memberstatus"
	"github.com/pelotech/ot-fleet/hub/metrics"
	"github.com/pelotech/ot-fleet/hub/reportlimits"
)

// +kubebuilder:rbac:groups=pelotech.ot,resources=clusterreports,verbs=get;list;watch;delete
// +kubebuilder:rbac:groups=pelotech.ot,resources=memberclusters,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get;list;watch

// Reconciler reads the report of one member per request: the root, and the pages that it
// lists and that have changed. A member cannot occupy more than one worker.
type Reconciler struct {
	// Cached has MemberClusters, and only the metadata of ClusterReports: the decoded
	// pages of a fleet are too large.
	Cached client.Reader
	Live   client.Client
	Index  *inventory.Index
	Store  *Store
	// Readers get everything that is read, the Index included, before the Store counts a
	// report as read.
	Readers []Reader
	// Heartbeats are those that replicas publish instead of copying them.
	Heartbeats *heartbeat.Received
	Events     events.EventRecorder
	Metrics    *metrics.Reports

	now     func() time.Time
	mu      sync.Mutex
	reports map[string]*readReport
	pages   *pageCache
	written *writtenReports
	// filled is closed when the stored reports have been listed; nil if they are not.
	filled chan struct{}
}

// Reader processes the reports. It must copy what it keeps, and must not block.
type Reader interface {
	// SetRoot sets the root of a member's report; nil if it was deleted.
	SetRoot(member string, root *v1alpha1.ReportRoot)
	SetPage(member, page string, sequence int64, images []v1alpha1.ReportedImage)
	DropPage(member, page string)
	// Forget drops a member that was deleted.
	Forget(member string)
}

// readReport is what was read of one member's report. Only the worker that reconciles the
// member uses it.
type readReport struct {
	// root is nil if there is none, or if it is too large. rootVersion is the
	// resourceVersion that was read.
	root         *v1alpha1.ClusterReport
	rootVersion  string
	rootTooLarge bool
	// rootUndecodable: the root that is stored now cannot be decoded.
	rootUndecodable bool
	// appliedRoot is the one that the readers have.
	appliedRoot *v1alpha1.ClusterReport
	// heartbeat: the root is a heartbeat, and nothing else has changed since the Store last
	// notified others.
	heartbeat, changed bool
	pages              map[string]readPage
	unlisted           reportlimits.Unlisted
	floodedAt          *time.Time
	// activityVersion is the resourceVersion of the activity that was read.
	activityVersion string
}

// readPage is a page that was read. It is kept by the readers unless it exceeds the limits.
type readPage struct {
	version string
	bytes   int
	kept    bool
	// undecodable: the page cannot be decoded, and has no version.
	undecodable bool
}

// New returns a Reconciler.
func New(cached client.Reader, live client.Client, recorder events.EventRecorder, m *metrics.Reports, index *inventory.Index, store *Store, readers ...Reader) *Reconciler {
	return &Reconciler{
		Cached: cached, Live: live, Events: recorder, Metrics: m, Index: index, Store: store, Heartbeats: heartbeat.NewReceived(),
		Readers: append([]Reader{index}, readers...), now: time.Now, reports: map[string]*readReport{}, pages: newPageCache(), written: newWrittenReports(),
	}
}

// Reconcile reads the report of the member of that name. Reports in the namespace of a
// deleted member are ignored.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (result ctrl.Result, err error) {
	r.awaitFill(ctx)
	name, member := request.Name, &v1alpha1.MemberCluster{}
	switch err := r.Cached.Get(ctx, client.ObjectKey{Name: name}, member, client.UnsafeDisableDeepCopy); {
	case apierrors.IsNotFound(err):
		r.forgetMember(name)
		r.Store.markRead(name)
		return ctrl.Result{}, nil
	case err != nil:
		return ctrl.Result{}, fmt.Errorf("reading MemberCluster %s: %w", name, err)
	}
	r.Index.AddMember(name)
	r.Index.SetStaleReason(name, memberstatus.StaleReason(member))
	report := r.reportOf(name)
	before := r.Store.Root(name)
	stored, err := r.listUsable(ctx, name)
	if err != nil {
		return ctrl.Result{}, err
	}
	if err := r.applyReport(ctx, name, report, stored, r.readStoredIn(stored)); err != nil {
		return ctrl.Result{}, err
	}
	result.RequeueAfter, err = r.deleteUnlisted(ctx, member, report, stored)
	if report.hasUndecodable() {
		result.RequeueAfter = min(cmp.Or(result.RequeueAfter, undecodableRetryDelay), undecodableRetryDelay)
	}
	totals, _ := r.Index.Totals(name)
	if r.Store.setFindings(name, len(totals.MissingPages) > 0, report.excess(), r.now()) || before.isSilent(r.now()) {
		report.changed = true
	}
	r.Store.markRead(name)
	r.Store.notify(name, report.heartbeat && !report.changed)
	report.heartbeat, report.changed = false, false
	return result, errors.Join(err, r.readActivity(ctx, name, report, stored))
}

func (r *Reconciler) reportOf(member string) *readReport {
	r.mu.Lock()
	defer r.mu.Unlock()
	report := r.reports[member]
	if report == nil {
		report = &readReport{pages: map[string]readPage{}, unlisted: reportlimits.Unlisted{}}
		r.reports[member] = report
	}
	return report
}

func (r *Reconciler) forgetMember(member string) {
	r.forEachReader(func(x Reader) { x.Forget(member) })
	r.Store.setRoot(member, nil, r.now())
	r.Metrics.Forget(member)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.reports, member)
}

func (r *Reconciler) forEachReader(do func(Reader)) {
	for _, x := range r.Readers {
		do(x)
	}
}

// IsNamespaceUsable reports whether the reports in a namespace, nil for none, are of this member: it
// is the member's, and is not being deleted. A namespace of a deleted MemberCluster has its report
// for some time, also after another of the same name is created.
func IsNamespaceUsable(ns *corev1.Namespace, member string) bool {
	return ns != nil && ns.Labels[v1alpha1.LabelMember] == member && ns.DeletionTimestamp.IsZero()
}

// listUsable returns listStored of a member whose namespace is usable; otherwise nothing.
func (r *Reconciler) listUsable(ctx context.Context, member string) (map[string]*metav1.PartialObjectMetadata, error) {
	ns := &corev1.Namespace{}
	switch err := r.Cached.Get(ctx, client.ObjectKey{Name: v1alpha1.MemberNamespacePrefix + member}, ns, client.UnsafeDisableDeepCopy); {
	case apierrors.IsNotFound(err):
		return nil, nil // its event requeues the member
	case err != nil:
		return nil, fmt.Errorf("reading the namespace of member %s: %w", member, err)
	case !IsNamespaceUsable(ns, member):
		return nil, nil
	}
	return r.listStored(ctx, member)
}

// listStored returns the metadata of what lies in a member's namespace, by name. The
// objects belong to the cache.
func (r *Reconciler) listStored(ctx context.Context, member string) (map[string]*metav1.PartialObjectMetadata, error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(clusterReportKind)
	if err := r.Cached.List(ctx, list, client.InNamespace(v1alpha1.MemberNamespacePrefix+member), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing the metadata of the ClusterReports of member %s: %w", member, err)
	}
	stored := make(map[string]*metav1.PartialObjectMetadata, len(list.Items))
	for i := range list.Items {
		stored[list.Items[i].Name] = &list.Items[i]
	}
	return stored, nil
}

// applyReport reads what has changed. The pages of a new root are set before it, and the
// former ones dropped after it: an image that moves between pages is never missing.
func (r *Reconciler) applyReport(ctx context.Context, member string, report *readReport, stored map[string]*metav1.PartialObjectMetadata, read readFunc) error {
	// A root that is too large as it is stored is not used, whatever its bounds would leave of it.
	if err := r.readRoot(ctx, member, report, stored[v1alpha1.MailboxName], read); err != nil {
		return err
	}
	read = boundedRead(read)
	if report.root != nil {
		// A heartbeat has a time of the member's, too.
		report.root = reportlimits.Bound(r.Heartbeats.FindHeartbeat(member, report.root.ResourceVersion).ApplyTo(report.root))
	}
	listed := report.listedPages()
	if err := r.readPages(ctx, member, report, listed, stored, read); err != nil {
		return err
	}
	if report.root != report.appliedRoot {
		switch {
		case mailbox.IsHeartbeat(report.appliedRoot, report.root):
			report.heartbeat = true
			r.Index.SetObservedAt(member, report.root.Root.ObservedAt.Time)
		case report.root == nil:
			report.changed = true
			r.forEachReader(func(x Reader) { x.SetRoot(member, nil) })
		default:
			report.changed = true
			r.forEachReader(func(x Reader) { x.SetRoot(member, report.root.Root) })
		}
		r.Store.setRoot(member, report.root, r.now())
		report.appliedRoot = report.root
	}
	isListed := make(map[string]bool, len(listed))
	for _, page := range listed {
		isListed[page] = true
	}
	for page := range report.pages {
		if !isListed[page] {
			r.dropPage(member, report, page)
		}
	}
	return nil
}

// readRoot reads the root if it has changed. One that is too large is not used, and the
// member becomes silent.
func (r *Reconciler) readRoot(ctx context.Context, member string, report *readReport, stored *metav1.PartialObjectMetadata, read readFunc) error {
	if stored == nil {
		report.root, report.rootVersion, report.rootTooLarge, report.rootUndecodable = nil, "", false, false
		return nil
	}
	if stored.ResourceVersion == report.rootVersion {
		return nil
	}
	root, err := read(ctx, member, v1alpha1.MailboxName)
	if report.rootUndecodable = errors.Is(err, errUndecodable); report.rootUndecodable {
		report.rootVersion = ""
		return nil
	}
	if err != nil {
		return err
	}
	if root == nil || root.Root == nil {
		report.root, report.rootVersion, report.rootTooLarge = nil, "", false
		return nil
	}
	report.rootVersion = root.ResourceVersion
	if report.rootTooLarge = v1alpha1.EncodedSize(root.Root) > v1alpha1.MaxReportObjectBytes; !report.rootTooLarge {
		report.root = root
	}
	return nil
}

// listedPages returns the names of the pages that the root lists, sorted.
func (r *readReport) listedPages() []string {
	if r.root == nil {
		return nil
	}
	listed := Root{Report: r.root.Root}
	names := listed.PageNames()
	return names[:min(len(names), v1alpha1.MaxReportPages)]
}

// readPages reads the listed pages that have changed, as far as the limits allow.
func (r *Reconciler) readPages(ctx context.Context, member string, report *readReport, listed []string, stored map[string]*metav1.PartialObjectMetadata, read readFunc) error {
	var budget reportlimits.PageBudget
	for _, name := range listed {
		metadata, page := stored[name], report.pages[name]
		if metadata != nil && page.version == metadata.ResourceVersion {
			fits := budget.FitsPage(page.bytes)
			if page.kept && !fits {
				// Pages before this one have grown.
				r.dropPage(member, report, name)
				report.pages[name] = readPage{version: page.version, bytes: page.bytes}
			}
			if page.kept == fits {
				budget.TakePage(page.bytes)
			}
			if page.kept || !fits {
				continue
			}
		}
		var live *v1alpha1.ClusterReport
		if metadata != nil {
			var err error
			if live, err = read(ctx, member, name); errors.Is(err, errUndecodable) {
				r.dropPage(member, report, name)
				report.pages[name] = readPage{undecodable: true}
				continue
			} else if err != nil {
				return err
			}
		}
		if live == nil || live.Page == nil {
			r.dropPage(member, report, name)
			continue
		}
		next := readPage{version: live.ResourceVersion, bytes: v1alpha1.EncodedSize(live.Page)}
		report.changed = true
		if next.kept = budget.TakePage(next.bytes); next.kept {
			r.forEachReader(func(x Reader) { x.SetPage(member, name, live.Sequence, live.Page.Images) })
		} else {
			r.dropPage(member, report, name)
		}
		report.pages[name] = next
	}
	return nil
}

func (r *Reconciler) dropPage(member string, report *readReport, page string) {
	if report.pages[page].kept {
		report.changed = true
		r.forEachReader(func(x Reader) { x.DropPage(member, page) })
	}
	delete(report.pages, page)
}

// readFunc returns a ClusterReport; nil if there is none. It may be newer than what is known
// to be stored.
type readFunc func(ctx context.Context, member, name string) (*v1alpha1.ClusterReport, error)

// boundedRead reads within the bounds of what a member may say.
func boundedRead(read readFunc) readFunc {
	return func(ctx context.Context, member, name string) (*v1alpha1.ClusterReport, error) {
		report, err := read(ctx, member, name)
		return reportlimits.Bound(report), err
	}
}

// readStoredIn reads what is stored: what this process wrote itself is known.
func (r *Reconciler) readStoredIn(stored map[string]*metav1.PartialObjectMetadata) readFunc {
	return func(ctx context.Context, member, name string) (*v1alpha1.ClusterReport, error) {
		if written := r.written.takeStored(ctx, stored[name]); written != nil {
			return written, nil
		}
		return r.readLive(ctx, member, name)
	}
}

// readLive reads a ClusterReport from the API server; nil if there is none.
func (r *Reconciler) readLive(ctx context.Context, member, name string) (*v1alpha1.ClusterReport, error) {
	key := types.NamespacedName{Namespace: v1alpha1.MemberNamespacePrefix + member, Name: name}
	report := &v1alpha1.ClusterReport{}
	switch err := r.Live.Get(ctx, key, report); {
	case apierrors.IsNotFound(err):
		return nil, nil
	case mailbox.IsUndecodable(ctx, err):
		ctrl.LoggerFrom(ctx).Info("Failed to decode a ClusterReport; treating it as missing", "member", member, "name", name, "error", v1alpha1.Truncate(err.Error(), 512))
		return nil, errUndecodable
	case err != nil:
		return nil, fmt.Errorf("reading ClusterReport %s: %w", key, err)
	}
	report.ManagedFields = nil
	return report, nil
}

// errUndecodable: the API server stores an object that the hub cannot decode. Its schema
// admits more than Go's types do, such as times with a lower-case t.
var errUndecodable = errors.New("the ClusterReport cannot be decoded")

// undecodableRetryDelay is the wait before an object that cannot be decoded is read again.
const undecodableRetryDelay = time.Minute
