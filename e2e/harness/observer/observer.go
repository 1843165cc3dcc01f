// Package observer judges the agent from outside by watches of its own. It judges imports by the
// DataVolumes that were created and can still download, never by a status that the agent writes.
// It compares what machines have acquired, by their status, with what was created and deleted.
package observer

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
)

// resource is a watched resource with its selectors.
type resource struct {
	schema.GroupVersionResource
	labels, fields string
}

var (
	dataVolumes = resource{GroupVersionResource: schema.GroupVersionResource{Group: "cdi.kubevirt.io", Version: "v1beta1", Resource: "datavolumes"}, labels: "pelotech.ot/image-uid"}
	importers   = resource{GroupVersionResource: schema.GroupVersionResource{Version: "v1", Resource: "pods"}, labels: "cdi.kubevirt.io=importer,pelotech.ot/image-uid"}
	images      = resource{GroupVersionResource: schema.GroupVersionResource{Group: "pelotech.ot", Version: "v1alpha1", Resource: "vmdiskimages"}}
	policies    = resource{GroupVersionResource: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, fields: "metadata.name=sync-operator-policy"}
	plans       = resource{GroupVersionResource: schema.GroupVersionResource{Group: "pelotech.ot", Version: "v1alpha1", Resource: "clusterplans"}}

	machines    = resource{GroupVersionResource: schema.GroupVersionResource{Group: "pelotech.ot", Version: "v1alpha1", Resource: "virtualmachines"}}
	disks       = resource{GroupVersionResource: dataVolumes.GroupVersionResource, labels: labelMachine}
	diskClaims  = resource{GroupVersionResource: imageClaims.GroupVersionResource, labels: labelMachine}
	imageClaims = resource{GroupVersionResource: schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumeclaims"}, labels: labelImage}
	snapshots   = resource{GroupVersionResource: schema.GroupVersionResource{Group: "snapshot.storage.k8s.io", Version: "v1", Resource: "volumesnapshots"}, labels: labelImage}

	watchedResources = []resource{dataVolumes, importers, images, policies, plans, machines, disks, diskClaims, imageClaims, snapshots}
	// optionalResources are not observed in a cluster that does not serve them at the beginning.
	optionalResources = []resource{snapshots}
)

// event is a change of an object. version is the revision of etcd, which orders the events of all
// resources; seen is when the watch delivered it.
type event struct {
	resource resource
	kind     watch.EventType
	version  uint64
	object   *unstructured.Unstructured
	seen     time.Time
	// preexisting marks the objects from before the observation.
	preexisting bool
}

// Observer records the events in a cluster from Start on.
type Observer struct {
	client dynamic.Interface
	// watched are the resources that the cluster serves.
	watched []resource
	stops   []func()

	mu     sync.Mutex
	events []event
	// acknowledgements are the versions from which a lowered policy applies.
	acknowledgements []uint64
	deletedByHand    map[types.UID]bool
}

// Start observes a cluster until ctx ends or Stop is called. Its watches survive a restart of the
// API server.
func Start(ctx context.Context, cfg *rest.Config) (*Observer, error) {
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("observing %s: %w", cfg.Host, err)
	}
	o := &Observer{client: client, deletedByHand: map[types.UID]bool{}}
	for _, r := range watchedResources {
		stop, err := controlplane.Watch(ctx, &cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
				return client.Resource(r.GroupVersionResource).List(ctx, r.listOptions())
			},
			WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
				options.LabelSelector, options.FieldSelector = r.labels, r.fields
				return client.Resource(r.GroupVersionResource).Watch(ctx, options)
			},
		}, func(c controlplane.Change[*unstructured.Unstructured]) { o.recordChange(r, c) })
		if apierrors.IsNotFound(err) && slices.Contains(optionalResources, r) {
			continue
		}
		if err != nil {
			o.Stop()
			return nil, fmt.Errorf("observing %s in %s: %w", r.Resource, cfg.Host, err)
		}
		o.watched = append(o.watched, r)
		o.stops = append(o.stops, stop)
	}
	return o, nil
}

// existingVersions returns the versions of the existing objects of a resource by the recorded events.
func (o *Observer) existingVersions(r resource) map[types.UID]string {
	o.mu.Lock()
	defer o.mu.Unlock()
	there := map[types.UID]string{}
	for _, e := range o.events {
		switch {
		case e.resource != r:
		case e.kind == watch.Deleted:
			delete(there, e.object.GetUID())
		default:
			there[e.object.GetUID()] = e.object.GetResourceVersion()
		}
	}
	return there
}

func (r resource) listOptions() metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: r.labels, FieldSelector: r.fields}
}

func (o *Observer) recordChange(r resource, c controlplane.Change[*unstructured.Unstructured]) {
	version, err := strconv.ParseUint(c.Object.GetResourceVersion(), 10, 64)
	if err != nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.events = append(o.events, event{resource: r, kind: c.Type, version: version, object: c.Object, seen: time.Now(), preexisting: c.Preexisting})
}

// Stop ends the observation.
func (o *Observer) Stop() {
	for _, stop := range o.stops {
		stop()
	}
}

// MarkDeletedByHand excuses the deletion of objects and of what depends on them: a person deletes
// them.
func (o *Observer) MarkDeletedByHand(uids ...types.UID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, uid := range uids {
		o.deletedByHand[uid] = true
	}
}

// MarkPolicyAcknowledged records that the current policy was acknowledged: a lowered limit applies
// from here on. A raised one applies at once.
func (o *Observer) MarkPolicyAcknowledged(ctx context.Context) error {
	list, err := o.client.Resource(policies.GroupVersionResource).List(ctx, policies.listOptions())
	if err != nil {
		return fmt.Errorf("reading the current version: %w", err)
	}
	version, err := strconv.ParseUint(list.GetResourceVersion(), 10, 64)
	if err != nil {
		return fmt.Errorf("reading the current version: %w", err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.acknowledgements = append(o.acknowledgements, version)
	return nil
}

// History waits until all events so far were seen and returns them in order.
func (o *Observer) History(ctx context.Context) (History, error) {
	for _, r := range o.watched {
		err := wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, controlplane.Patience, true, func(ctx context.Context) (bool, error) {
			list, err := o.client.Resource(r.GroupVersionResource).List(ctx, r.listOptions())
			return err == nil && o.isCaughtUp(r, list), nil
		})
		if err != nil {
			return History{}, fmt.Errorf("waiting for the watch of %s: %w", r.Resource, err)
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	h := History{events: slices.Clone(o.events), acknowledgements: slices.Clone(o.acknowledgements), deletedByHand: maps.Clone(o.deletedByHand)}
	slices.SortStableFunc(h.events, func(a, b event) int { return cmp.Compare(a.version, b.version) })
	return h, nil
}

// isCaughtUp reports whether the recorded events of a resource add up to a list of it.
func (o *Observer) isCaughtUp(r resource, list *unstructured.UnstructuredList) bool {
	there := o.existingVersions(r)
	if len(there) != len(list.Items) {
		return false
	}
	for i := range list.Items {
		if there[list.Items[i].GetUID()] != list.Items[i].GetResourceVersion() {
			return false
		}
	}
	return true
}
