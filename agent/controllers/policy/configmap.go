package policy

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// ownLimits is what of a valid policy ConfigMap the hub's plan cannot exceed.
type ownLimits struct {
	configMapVersion string
	// policy has only concurrency, windows and allowedNamespaces.
	policy policy.Policy
}

func newOwnLimits(own policy.Policy, configMapVersion string) ownLimits {
	return ownLimits{configMapVersion: configMapVersion, policy: policy.Policy{
		Concurrency: own.Concurrency, ConcurrencyUnset: own.ConcurrencyUnset, Windows: own.Windows, AllowedNamespaces: own.AllowedNamespaces,
	}}
}

// readConfigMap reads the member's own policy. While the ConfigMap is missing or invalid,
// the last valid policy, which the ledger stores, stays in force. planned: the hub has a
// policy for this member.
func (r *Reader) readConfigMap(ctx context.Context, status v1alpha1.SyncLedgerStatus, planned bool) (State, error) {
	var last *policy.Policy
	if len(status.Policy) > 0 {
		if p, _, errs := policy.ParseConfigMap(status.Policy); len(errs) == 0 {
			last = &p
		}
	}
	cm := &corev1.ConfigMap{}
	err := r.Cached.Get(ctx, r.ConfigMapKey, cm)
	mayBeUnseen := planned && apierrors.IsNotFound(err) && status.PolicyVersion != ""
	// By a ConfigMap from before the one that another leader has written the ledger under, a
	// budget that was lowered would rise again.
	if mayBeUnseen || (err == nil && trigger.IsOlderVersion(cm.ResourceVersion, status.PolicyVersion)) {
		err = r.Live.Get(ctx, r.ConfigMapKey, cm)
	}
	if apierrors.IsNotFound(err) {
		message := fmt.Sprintf("ConfigMap %s does not exist: create it; without keys the defaults apply.", r.ConfigMapKey)
		return State{own: last, reason: v1alpha1.ReasonMissing, message: message + describeLastPolicy(last, r.Now())}, nil
	}
	if err != nil {
		return State{}, fmt.Errorf("reading policy ConfigMap %s: %w", r.ConfigMapKey, err)
	}
	parsed, unknown, errs := policy.ParseConfigMap(cm.Data)
	if errs = append(errs, policy.BinaryErrors(cm.BinaryData)...); len(errs) > 0 {
		texts := make([]string, len(errs))
		for i, e := range errs {
			texts[i] = e.Error()
		}
		message := fmt.Sprintf("ConfigMap %s is not used: %s.", r.ConfigMapKey, strings.Join(texts, "; "))
		return State{
			own: last, reason: v1alpha1.ReasonInvalid, message: message + describeLastPolicy(last, r.Now()),
			invalidMessage: message, keyErrors: errs, configMap: cm,
		}, nil
	}
	ignored := ""
	if len(unknown) > 0 {
		slices.Sort(unknown)
		ignored = fmt.Sprintf("; keys that are not for a cluster's own policy are ignored: %s (those that are: %s)", strings.Join(unknown, ", "), strings.Join(policy.ConfigMapKeys(), ", "))
	}
	return State{
		own: &parsed, Accepted: true, store: true, reason: v1alpha1.ReasonAccepted, message: "in force" + ignored, ignoredKeys: ignored,
		configMapVersion: cm.ResourceVersion, configMapUID: cm.UID, ownConcurrency: concurrencyOf(parsed), ownWindows: parsed.Windows,
	}, nil
}

// concurrencyOf returns the limit of a valid ConfigMap; nil where it sets none.
func concurrencyOf(own policy.Policy) *int32 {
	if own.ConcurrencyUnset {
		return nil
	}
	return &own.Concurrency
}

func describeLastPolicy(last *policy.Policy, now time.Time) string {
	if last == nil {
		return " There was never a valid policy, so nothing is downloaded."
	}
	inForce, _ := last.At(now)
	return fmt.Sprintf(" The last valid policy stays in force, concurrency %d.", inForce.Concurrency)
}

// readLastOwn returns the last valid ConfigMap that the ledger was written under: its limits
// stay while the ConfigMap is invalid. Where an agent of an older version wrote the ledger,
// the concurrency in force applies, which was no higher.
func (r *Reader) readLastOwn(status v1alpha1.SyncLedgerStatus) (last policy.Policy, known bool) {
	if status.PolicyVersion == "" {
		return policy.Policy{}, false
	}
	if r.lastOwn.configMapVersion == status.PolicyVersion {
		return r.lastOwn.policy, true
	}
	p, _, errs := policy.ParseConfigMap(status.Policy)
	if len(errs) > 0 {
		return policy.Policy{}, false
	}
	if status.OwnConcurrency != nil || status.OwnConcurrencyUnset {
		p.Concurrency, p.ConcurrencyUnset = ptr.Deref(status.OwnConcurrency, policy.Default().Concurrency), status.OwnConcurrencyUnset
	}
	var err error
	p.Windows, err = policy.ParseWindows(status.OwnWindows)
	return newOwnLimits(p, "").policy, err == nil
}
