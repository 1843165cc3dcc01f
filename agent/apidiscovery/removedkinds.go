package apidiscovery

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// recheckInterval is how often the API server is asked about kinds that it serves. Those that are
// absent are asked for at each discoveryInterval.
const recheckInterval = time.Minute

// Recheck makes the tracker notice that a kind which was served is removed, or is served again: d is
// asked, since a mapper remembers what it has found once. onChange is called after each such change.
// Callbacks are not called again: a watch outlives the removal of its kind. It has to be called before
// Start.
func (t *KindTracker) Recheck(d discovery.DiscoveryInterface, onChange func(context.Context)) {
	t.discovery, t.onChange = d, onChange
}

// recheck asks about the kinds that were served.
//
// Invariant: a kind counts as removed, so that no object of it exists, only after two answers at least
// discoveryInterval apart, in no version of its group. One API server may know a new kind later than
// another one.
func (t *KindTracker) recheck(ctx context.Context) {
	absent := len(t.absentSince) > 0
	if !absent && !t.recheckedAt.IsZero() && time.Since(t.recheckedAt) < recheckInterval {
		return
	}
	t.mu.Lock()
	served := maps.Clone(t.served)
	t.mu.Unlock()
	answers := map[string]*metav1.APIResourceList{}
	changed := false
	for gvk, was := range served {
		is, err := t.askServed(gvk, answers)
		if err != nil {
			log.FromContext(ctx).Error(err, "Failed to check whether the cluster still serves a kind; retrying", "kind", gvk.GroupKind(), "served", was)
			continue
		}
		switch since, known := t.absentSince[gvk]; {
		case is:
			delete(t.absentSince, gvk)
		case !known:
			t.absentSince[gvk] = time.Now()
			continue
		case time.Since(since) < discoveryInterval:
			continue
		}
		if is != was {
			changed = true
			t.mu.Lock()
			t.served[gvk] = is
			t.mu.Unlock()
			message := "A kind is no longer served; what needs it waits until it is installed again"
			if is {
				message = "A kind is served again"
			}
			log.FromContext(ctx).Info(message, "kind", gvk.GroupKind())
		}
	}
	t.recheckedAt = time.Now()
	if changed {
		t.onChange(ctx)
	}
}

// askServed asks whether a kind is served. That it is in another version only is an error: objects of
// it exist. answers are those that were given already.
func (t *KindTracker) askServed(gvk schema.GroupVersionKind, answers map[string]*metav1.APIResourceList) (bool, error) {
	if is, err := t.hasKind(gvk.GroupVersion().String(), gvk.Kind, answers); is || err != nil {
		return is, err
	}
	groups, err := t.discovery.ServerGroups()
	if err != nil {
		return false, fmt.Errorf("listing API groups: %w", err)
	}
	for _, group := range groups.Groups {
		if group.Name != gvk.Group {
			continue
		}
		for _, version := range group.Versions {
			is, err := t.hasKind(version.GroupVersion, gvk.Kind, answers)
			if err != nil {
				return false, err
			}
			if is {
				return false, fmt.Errorf("it is served in version %s, not %s", version.Version, gvk.Version)
			}
		}
	}
	return false, nil
}

func (t *KindTracker) hasKind(groupVersion, kind string, answers map[string]*metav1.APIResourceList) (bool, error) {
	list, answered := answers[groupVersion]
	if !answered {
		var err error
		list, err = t.discovery.ServerResourcesForGroupVersion(groupVersion)
		if apierrors.IsNotFound(err) {
			list, err = &metav1.APIResourceList{}, nil
		}
		if err != nil {
			return false, fmt.Errorf("listing resources of %s: %w", groupVersion, err)
		}
		answers[groupVersion] = list
	}
	return slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Kind == kind }), nil
}
