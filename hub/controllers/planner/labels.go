package planner

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pelotech/ot-fleet/api/shellword"
	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/memberlabels"
)

// +kubebuilder:rbac:groups="",namespace=hub-namespace,resources=configmaps,verbs=get;create;update

// rememberLabels stores the labels of a member that leaves. Invariant: it does so before the
// MemberCluster is gone. A ConfigMap that cannot be written delays the removal by
// cleanUpTimeout at most.
func (r *Reconciler) rememberLabels(ctx context.Context, member *v1alpha1.MemberCluster) error {
	live := &v1alpha1.MemberCluster{} // with its managed fields, which the cache lacks
	if err := r.Live.Get(ctx, client.ObjectKeyFromObject(member), live); err != nil {
		return client.IgnoreNotFound(err)
	}
	if live.UID != member.UID {
		return nil
	}
	now, leftAt := time.Now(), apiServerTime(live.DeletionTimestamp)
	err := r.updateLabelStore(ctx, func(data map[string]string) bool { return memberlabels.Remember(data, live, leftAt) })
	if err == nil || trigger.IsConflict(err) || now.Before(r.ensureCleanUp(member, now, false).until) {
		return err
	}
	log.FromContext(ctx).Error(err, "Failed to keep the labels of a removed member; set them by hand when it joins again", "member", member.Name)
	r.Events.Eventf(member, nil, corev1.EventTypeWarning, "LabelsNotKept", "Delete", "If MemberCluster %s joins again, set its labels by hand: %s. The hub could not keep them: %s",
		member.Name, listLabels(memberlabels.Kept(live)), v1alpha1.SanitizeText(err.Error(), maxListedLabels/2))
	return nil
}

// restoreLabels gives a new member the labels that it had when it left, without writing it.
func (r *Reconciler) restoreLabels(ctx context.Context, member *v1alpha1.MemberCluster) (restored map[string]string, err error) {
	store, err := r.getLabelStore(ctx)
	if err != nil {
		return nil, err
	}
	return memberlabels.Restore(store.Data, member, apiServerTime(&member.CreationTimestamp)), nil
}

// apiServerTime returns when an object was created or deleted. By the clock of a hub that is ahead,
// the labels of all departed members would have expired, and would be dropped.
func apiServerTime(at *metav1.Time) time.Time {
	if at.IsZero() {
		return time.Now()
	}
	return at.Time
}

// confirmRestored says which labels a member has got back, and forgets them. Labels that
// people remove from now on stay away. What is not for the member stays: restored is nil.
func (r *Reconciler) confirmRestored(ctx context.Context, member *v1alpha1.MemberCluster, restored map[string]string) {
	if restored == nil {
		return
	}
	if len(restored) > 0 {
		r.Events.Eventf(member, nil, corev1.EventTypeNormal, "LabelsRestored", "Join",
			"MemberCluster %s has the labels again that it had when it left: %s. To remove one: %s", member.Name, listLabels(restored), shellword.FormatCommand("kubectl label membercluster %s <key>-", member.Name))
	}
	if err := r.updateLabelStore(ctx, func(data map[string]string) bool { return memberlabels.Forget(data, member) }); err != nil {
		log.FromContext(ctx).Error(err, "Failed to delete stored labels of a rejoined member; they are overwritten when it leaves")
	}
}

// maxListedLabels bounds the labels that an event names.
const maxListedLabels = 512

func listLabels(labels map[string]string) string {
	list := make([]string, 0, len(labels))
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		list = append(list, key+"="+labels[key])
	}
	return v1alpha1.Truncate(strings.Join(list, ", "), maxListedLabels)
}

func (r *Reconciler) getLabelStore(ctx context.Context) (*corev1.ConfigMap, error) {
	store := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: memberlabels.ConfigMap}}
	if err := r.Live.Get(ctx, client.ObjectKeyFromObject(store), store); err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("reading the labels of departed members: %w", err)
	}
	if store.Data == nil {
		store.Data = map[string]string{}
	}
	return store, nil
}

// updateLabelStore writes the ConfigMap if it changes, against the resourceVersion that was
// read.
func (r *Reconciler) updateLabelStore(ctx context.Context, change func(data map[string]string) bool) error {
	store, err := r.getLabelStore(ctx)
	if err != nil {
		return err
	}
	if !change(store.Data) {
		return nil
	}
	if err := r.createOrUpdate(ctx, store); err != nil {
		return fmt.Errorf("storing the labels of departed members in ConfigMap %s/%s: %w", store.Namespace, store.Name, err)
	}
	return nil
}
