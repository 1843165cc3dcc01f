package helm

import (
	"context"
	"errors"
	"fmt"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"

	"github.com/pelotech/ot-fleet/api/transport"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const (
	// maxGroupVersions is far above what a cluster with hundreds of CRDs serves.
	maxGroupVersions = 1000
	// maxGroupVersionBytes of one name: a DNS subdomain, a slash and a label.
	maxGroupVersionBytes = 253 + 1 + 63
	// maxDiscoveryErrorBytes of the error of one version, all of which are in one line of
	// the log.
	maxDiscoveryErrorBytes = 200
)

// sequentialDiscovery reads which kinds a member serves, once for each Invalidate. The
// cache of client-go sends a request for each version at the same time, as many as the
// server names, and none of them ends with the session.
type sequentialDiscovery struct {
	discovery.DiscoveryInterface
	ctx    context.Context
	source discovery.AggregatedDiscoveryInterface

	mu        sync.Mutex
	isRead    bool
	groups    []*metav1.APIGroup
	resources []*metav1.APIResourceList
	failed    map[schema.GroupVersion]error
}

// newSequentialDiscovery returns a cache of what source reads until ctx ends.
func newSequentialDiscovery(ctx context.Context, source discovery.AggregatedDiscoveryInterface) *sequentialDiscovery {
	return &sequentialDiscovery{DiscoveryInterface: source, ctx: ctx, source: source}
}

// ServerGroupsAndResources implements discovery.ServerResourcesInterface.
func (d *sequentialDiscovery) ServerGroupsAndResources() ([]*metav1.APIGroup, []*metav1.APIResourceList, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.isRead {
		if err := d.readLocked(); err != nil {
			return nil, nil, err
		}
		d.isRead = true
	}
	if len(d.failed) > 0 {
		return d.groups, d.resources, &discovery.ErrGroupDiscoveryFailed{Groups: d.failed}
	}
	return d.groups, d.resources, nil
}

// readLocked reads all kinds. A version that cannot be read, as that of an API service that
// is down, is no error.
func (d *sequentialDiscovery) readLocked() error {
	list, read, failed, err := d.source.GroupsAndMaybeResources()
	if err != nil {
		return err
	}
	d.groups, d.resources, d.failed = nil, nil, failed
	if bound := exceededBound(list); bound != "" {
		return &transport.LimitError{Request: "a request for all kinds", Bound: bound}
	}
	for i := range list.Groups {
		group := &list.Groups[i]
		d.groups = append(d.groups, group)
		for _, v := range group.Versions {
			gv := schema.GroupVersion{Group: group.Name, Version: v.Version}
			resources := read[gv]
			if read == nil {
				if resources, err = d.source.ServerResourcesForGroupVersion(v.GroupVersion); err != nil {
					if limit := (*transport.LimitError)(nil); d.ctx.Err() != nil || errors.As(err, &limit) {
						return err
					}
					d.failed[gv] = errors.New(v1alpha1.SanitizeText(err.Error(), maxDiscoveryErrorBytes))
				}
			}
			if resources != nil {
				d.resources = append(d.resources, resources)
			}
		}
	}
	return nil
}

// exceededBound returns what the groups of a cluster exceed; empty for nothing.
func exceededBound(list *metav1.APIGroupList) string {
	versions := 0
	for i := range list.Groups {
		versions += len(list.Groups[i].Versions)
		for _, v := range list.Groups[i].Versions {
			if len(v.GroupVersion) > maxGroupVersionBytes {
				return fmt.Sprintf("has a version of a group with a name of more than %d bytes", maxGroupVersionBytes)
			}
		}
	}
	if versions > maxGroupVersions {
		return fmt.Sprintf("has %d versions of groups, of at most %d", versions, maxGroupVersions)
	}
	return ""
}

// ServerGroups implements discovery.ServerGroupsInterface.
func (d *sequentialDiscovery) ServerGroups() (*metav1.APIGroupList, error) {
	groups, _, err := d.ServerGroupsAndResources()
	if err != nil && !discovery.IsGroupDiscoveryFailedError(err) {
		return nil, err
	}
	list := &metav1.APIGroupList{}
	for _, group := range groups {
		list.Groups = append(list.Groups, *group)
	}
	return list, nil
}

// ServerResourcesForGroupVersion implements discovery.ServerResourcesInterface.
func (d *sequentialDiscovery) ServerResourcesForGroupVersion(groupVersion string) (*metav1.APIResourceList, error) {
	_, all, err := d.ServerGroupsAndResources()
	if err != nil && !discovery.IsGroupDiscoveryFailedError(err) {
		return nil, err
	}
	for _, resources := range all {
		if resources.GroupVersion == groupVersion {
			return resources, nil
		}
	}
	return nil, memory.ErrCacheNotFound
}

// ServerPreferredResources implements discovery.ServerResourcesInterface.
func (d *sequentialDiscovery) ServerPreferredResources() ([]*metav1.APIResourceList, error) {
	return discovery.ServerPreferredResources(d)
}

// ServerPreferredNamespacedResources implements discovery.ServerResourcesInterface.
func (d *sequentialDiscovery) ServerPreferredNamespacedResources() ([]*metav1.APIResourceList, error) {
	return discovery.ServerPreferredNamespacedResources(d)
}

// WithLegacy implements discovery.DiscoveryInterface.
func (d *sequentialDiscovery) WithLegacy() discovery.DiscoveryInterface { return d }

// Fresh implements discovery.CachedDiscoveryInterface.
func (d *sequentialDiscovery) Fresh() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.isRead
}

// Invalidate implements discovery.CachedDiscoveryInterface.
func (d *sequentialDiscovery) Invalidate() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.isRead = false
}
