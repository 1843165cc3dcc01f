// Package policy takes the fleet's policy ConfigMap into force, and answers
// previews of other ones.
package policy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	apipolicy "github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/trigger"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/metrics"
	"github.com/pelotech/ot-fleet/hub/policy"
)

// +kubebuilder:rbac:groups="",namespace=policy-namespace,resources=configmaps,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups="",namespace=hub-namespace,resources=configmaps,verbs=get;create;update
// +kubebuilder:rbac:groups=pelotech.ot,resources=memberclusters,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// InForceConfigMap names the ConfigMap in the hub's namespace with the policy in force: a
// hub that starts beside an invalid ConfigMap continues with the last valid one.
const InForceConfigMap = "ot-hub-policy-in-force"

// maxStoreErrorBytes bounds what is quoted of an answer of the API server.
const maxStoreErrorBytes = 300

// Limits of announcements that a policy that cannot be stored has another cause: each has all members planned.
const (
	storeCauseInterval = 10 * time.Minute
	storeCauseBurst    = 3
)

// maxAnswerBytes bounds the answer to a preview: all annotations of an object are at most 256 KiB.
// maxNoteBytes of it are what the preview warns of, which a long table does not crowd out.
const (
	maxAnswerBytes = 64 << 10
	maxNoteBytes   = 8 << 10
)

// AnnotationRefused of that ConfigMap says why the fleet's policy ConfigMap is not
// in force; it is absent while it is.
const AnnotationRefused = "pelotech.ot/refused"

// Annotations of that ConfigMap with the version of the fleet's policy ConfigMap that it
// was written for. An older version in a cache is ignored.
const (
	annotationUID             = "pelotech.ot/policy-uid"
	annotationResourceVersion = "pelotech.ot/policy-resource-version"
)

// Reconciler takes every valid version of the policy ConfigMap into force.
type Reconciler struct {
	client.Client
	Live    client.Reader
	Events  events.EventRecorder
	Metrics *metrics.Metrics
	InForce *InForce
	// Namespace of the hub.
	Namespace string
	// PolicyKey names the fleet's policy ConfigMap.
	PolicyKey types.NamespacedName

	conflicts trigger.ConflictTracker

	// last is the last evaluation, so that events are recorded once.
	last      evaluation
	evaluated bool
	// storeCauses limits how often the cause in last.unstored becomes another.
	storeCauses *rate.Limiter
}

// evaluation is the result of reading the ConfigMap.
type evaluation struct {
	version objectVersion
	data    map[string]string // nil: there is no valid policy
	policy  *policy.Policy
	unknown []string
	errs    []apipolicy.KeyError
	// standing are errors of members that the policy in force has as well.
	standing []apipolicy.KeyError
	missing  bool
	// unstored is why a valid policy cannot be stored, and so is none; nil for nothing.
	unstored error
}

// objectVersion is a version of the ConfigMap; empty if there is none.
type objectVersion struct{ uid, resourceVersion string }

func versionOf(cm *corev1.ConfigMap) objectVersion {
	if cm == nil {
		return objectVersion{}
	}
	return objectVersion{string(cm.UID), cm.ResourceVersion}
}

// Reconcile evaluates the fleet's policy or a preview.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	if request.NamespacedName == r.PolicyKey {
		return r.conflicts.Result(ctx, request, ctrl.Result{}, r.reconcilePolicy(ctx, request))
	}
	return r.conflicts.Result(ctx, request, ctrl.Result{}, r.reconcilePreview(ctx, request.NamespacedName))
}

func (r *Reconciler) reconcilePolicy(ctx context.Context, request ctrl.Request) error {
	stored, err := r.getInForce(ctx)
	if err != nil {
		return err
	}
	cm, err := r.getConfigMap(ctx, stored)
	if err != nil {
		return err
	}
	members, err := r.listMembers(ctx)
	if err != nil {
		return err
	}
	var last *policy.Policy
	if stored.Name != "" {
		last, _, _ = policy.ParsePolicy(stored.Data) // nil where it is invalid
	}
	if last == nil { // it was stored when it came into force
		last = r.InForce.Current().Policy
	}
	next := evaluate(cm, last, members)
	next.version = versionOf(cm)
	// Invariant: a policy is stored before anything is planned by it. A hub that restarts beside an invalid
	// ConfigMap must not fall behind what members have.
	storeErr := r.storeInForce(ctx, stored.DeepCopy(), next)
	switch {
	case storeErr != nil && ctx.Err() != nil, r.conflicts.IsPreempted(request, storeErr):
		return storeErr // this process ends, or another read may solve it
	case storeErr != nil && next.data != nil && (stored.Name == "" || !maps.Equal(next.data, stored.Data)):
		next = evaluation{version: next.version, unstored: r.limitStoreCause(storeErr)}
	}
	// Without a stored policy, that of the ConfigMap may be the one that members have.
	state := State{Known: last != nil || next.unstored == nil, Policy: next.policy, Errors: next.errs, Standing: next.standing, Message: r.describe(next)}
	if state.Policy == nil {
		state.Refused, state.Policy = true, last
		state.Message += describeFallback(state.Policy)
	}
	r.recordChange(ctx, cm, next, state)
	if !r.evaluated || !equality.Semantic.DeepEqual(r.last.data, next.data) || !next.hasErrorsOf(r.last) || r.last.missing != next.missing {
		r.InForce.publish(state)
	}
	r.last, r.evaluated = next, true
	return storeErr
}

// getConfigMap returns nil if there is no ConfigMap. The cache of a new leader may be
// older than what the last leader took into force; then the ConfigMap is read live.
func (r *Reconciler) getConfigMap(ctx context.Context, stored *corev1.ConfigMap) (*corev1.ConfigMap, error) {
	cm := &corev1.ConfigMap{}
	err := r.Get(ctx, r.PolicyKey, cm)
	last := stored.Annotations[annotationResourceVersion]
	if apierrors.IsNotFound(err) && last != "" || err == nil && trigger.IsOlderVersion(cm.ResourceVersion, last) {
		cm = &corev1.ConfigMap{}
		err = r.Live.Get(ctx, r.PolicyKey, cm)
	}
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading the fleet's policy ConfigMap %s: %w", r.PolicyKey, err)
	}
	return cm, nil
}

func (r *Reconciler) listMembers(ctx context.Context) ([]policy.Member, error) {
	var list v1alpha1.MemberClusterList
	if err := r.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing MemberClusters: %w", err)
	}
	members := make([]policy.Member, len(list.Items))
	for i := range list.Items {
		members[i] = policy.Member{Name: list.Items[i].Name, Labels: list.Items[i].Labels, OwnConcurrency: list.Items[i].Status.OwnConcurrency}
	}
	return members, nil
}

func (e evaluation) hasErrorsOf(other evaluation) bool {
	return storeCause(e.unstored) == storeCause(other.unstored) && equality.Semantic.DeepEqual(e.errs, other.errs) && equality.Semantic.DeepEqual(e.standing, other.standing)
}

// limitStoreCause returns the error to announce: that announced last while causes change too often, for example where
// two answers alternate. A cause that lasts is announced within storeCauseInterval.
func (r *Reconciler) limitStoreCause(err error) error {
	if r.storeCauses == nil {
		r.storeCauses = rate.NewLimiter(rate.Every(storeCauseInterval), storeCauseBurst)
	}
	if last := r.last.unstored; last != nil && storeCause(last) != storeCause(err) && !r.storeCauses.Allow() {
		return last
	}
	return err
}

// storeCause returns what stays the same of the errors of one cause: their texts may have another port, count
// or UID each time. It is empty for no error.
func storeCause(err error) string {
	var answer apierrors.APIStatus
	switch {
	case err == nil:
		return ""
	case !errors.As(err, &answer):
		return "no answer"
	}
	words := strings.FieldsFunc(err.Error(), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '-' })
	return strings.Join(slices.DeleteFunc(words, func(word string) bool { return strings.ContainsFunc(word, unicode.IsDigit) }), " ")
}

// evaluate parses a ConfigMap and validates it for every member. A fault that the policy in force has, too, is
// no reason to refuse it: see Policy.ValidateChange. inForce is nil for none.
func evaluate(cm *corev1.ConfigMap, inForce *policy.Policy, members []policy.Member) evaluation {
	if cm == nil {
		return evaluation{missing: true}
	}
	parsed, unknown, errs := policy.ParsePolicy(cm.Data)
	var standing []apipolicy.KeyError
	if errs = append(errs, apipolicy.BinaryErrors(cm.BinaryData)...); len(errs) == 0 {
		errs, standing = parsed.ValidateChange(inForce, members)
	}
	if len(errs) > 0 {
		return evaluation{unknown: unknown, errs: errs}
	}
	data := cm.Data
	if data == nil {
		data = map[string]string{}
	}
	return evaluation{data: data, policy: parsed, unknown: unknown, standing: standing}
}

// getInForce reads the last policy in force; its name is empty if there was none.
func (r *Reconciler) getInForce(ctx context.Context) (*corev1.ConfigMap, error) {
	cm := &corev1.ConfigMap{}
	key := types.NamespacedName{Namespace: r.Namespace, Name: InForceConfigMap}
	if err := r.Live.Get(ctx, key, cm); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading the policy in force in ConfigMap %s: %w", key, err)
	} else if err != nil {
		return &corev1.ConfigMap{}, nil
	}
	return cm, nil
}

// storeInForce stores the policy in force, or beside it why another one is refused. If there
// was never a policy in force nothing is stored, since empty data would be one.
func (r *Reconciler) storeInForce(ctx context.Context, stored *corev1.ConfigMap, next evaluation) (err error) {
	exists, refusal := stored.Name != "", ""
	if next.data == nil {
		refusal = r.describe(next)
	}
	changed := next.data != nil && (!exists || !maps.Equal(next.data, stored.Data))
	// Versions of another object have no order with those of this one.
	another := next.version.uid != "" && stored.Annotations[annotationUID] != next.version.uid
	switch {
	case next.data == nil && !exists, !changed && !another && stored.Annotations[AnnotationRefused] == refusal:
		return nil
	case changed:
		stored.Data = next.data
	}
	if next.version.uid != "" {
		metav1.SetMetaDataAnnotation(&stored.ObjectMeta, annotationUID, next.version.uid)
		metav1.SetMetaDataAnnotation(&stored.ObjectMeta, annotationResourceVersion, next.version.resourceVersion)
	}
	delete(stored.Annotations, AnnotationRefused)
	if refusal != "" {
		metav1.SetMetaDataAnnotation(&stored.ObjectMeta, AnnotationRefused, refusal)
	}
	if exists {
		err = r.Update(ctx, stored)
	} else {
		stored.Namespace, stored.Name = r.Namespace, InForceConfigMap
		err = r.Create(ctx, stored)
	}
	if err != nil {
		return fmt.Errorf("storing the policy in force in ConfigMap %s/%s: %w", r.Namespace, InForceConfigMap, err)
	}
	return nil
}

func (r *Reconciler) describe(next evaluation) string {
	switch {
	case next.missing:
		return fmt.Sprintf("ConfigMap %s does not exist: create it; without keys the defaults apply.", r.PolicyKey)
	case next.unstored != nil:
		return fmt.Sprintf("ConfigMap %s is not used before the hub can store it, which it retries: %s.", r.PolicyKey, v1alpha1.SanitizeText(next.unstored.Error(), maxStoreErrorBytes))
	case len(next.errs) > 0:
		return fmt.Sprintf("ConfigMap %s is not used: %s.", r.PolicyKey, policy.FormatErrors(next.errs))
	case len(next.standing) > 0:
		return fmt.Sprintf("in force, but it contradicts itself for these members: %s. Correct the policy, or the labels of these members", policy.FormatErrors(next.standing))
	case len(next.unknown) > 0:
		return fmt.Sprintf("in force; unknown keys are ignored: %s (known keys: %s)", strings.Join(next.unknown, ", "), strings.Join(policy.KnownKeys(), ", "))
	case next.policy != nil && len(next.policy.DescribeIneffective()) > 0:
		return "in force; " + strings.Join(next.policy.DescribeIneffective(), "; ")
	default:
		return "in force"
	}
}

func describeFallback(last *policy.Policy) string {
	if last == nil {
		return " There has never been a valid policy, so no cluster gets one."
	}
	return " The last valid policy stays in force."
}

// recordChange sets the metrics, and records an event and a log line for a new result.
func (r *Reconciler) recordChange(ctx context.Context, cm *corev1.ConfigMap, next evaluation, state State) {
	keys := make([]string, len(next.errs))
	for i, e := range next.errs {
		keys[i] = e.Key
	}
	r.Metrics.SetPolicyValid(next.policy != nil, keys)
	if cm == nil || r.evaluated && next.hasErrorsOf(r.last) {
		return
	}
	switch {
	case next.unstored != nil:
		log.FromContext(ctx).Info("Failed to store the fleet's policy; keeping the last valid policy and retrying", "error", next.unstored.Error())
		r.Events.Eventf(cm, nil, corev1.EventTypeWarning, "PolicyNotStored", "ReadPolicy", "%s", state.Message)
	case len(next.errs) > 0:
		log.FromContext(ctx).Info("Rejected the fleet's policy ConfigMap; keeping the last valid policy", "error", state.Message)
		r.Events.Eventf(cm, nil, corev1.EventTypeWarning, "PolicyInvalid", "ReadPolicy", "%s", state.Message)
	case len(next.standing) > 0:
		log.FromContext(ctx).Info("Fleet policy contradicts itself for some members; it stays in force", "error", state.Message)
		r.Events.Eventf(cm, nil, corev1.EventTypeWarning, "PolicyContradicted", "ReadPolicy", "%s", state.Message)
	case r.evaluated:
		r.Events.Eventf(cm, nil, corev1.EventTypeNormal, "PolicyAccepted", "ReadPolicy", "%s", state.Message)
	}
}

func (r *Reconciler) reconcilePreview(ctx context.Context, key types.NamespacedName) error {
	cm := &corev1.ConfigMap{}
	if err := r.Get(ctx, key, cm); err != nil {
		return client.IgnoreNotFound(err)
	}
	if !isPreview(cm) || !cm.DeletionTimestamp.IsZero() {
		return nil
	}
	state := r.InForce.Current()
	if !state.Known {
		return nil // each preview is enqueued once it is
	}
	members, err := r.listMembers(ctx)
	if err != nil {
		return err
	}
	next := evaluate(cm, state.Policy, members)
	answer, notes := "", ""
	if len(next.errs) > 0 {
		answer = "would be refused: " + policy.FormatErrors(next.errs)
	} else {
		answer = policy.Preview(state.Policy, next.policy, members, time.Now())
		for _, note := range next.policy.DescribeIneffective() {
			notes += "\n" + note
		}
	}
	if len(next.unknown) > 0 {
		notes += "\nunknown keys: " + strings.Join(next.unknown, ", ")
	}
	notes = v1alpha1.Truncate(notes, maxNoteBytes)
	answer = v1alpha1.Truncate(answer, maxAnswerBytes-len(notes)) + notes
	if cm.Annotations[v1alpha1.AnnotationPreview] == answer {
		return nil
	}
	base := cm.DeepCopy()
	metav1.SetMetaDataAnnotation(&cm.ObjectMeta, v1alpha1.AnnotationPreview, answer)
	if err := r.Patch(ctx, cm, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("answering the preview in ConfigMap %s: %w", key, err)
	}
	return nil
}

func isPreview(o client.Object) bool {
	_, ok := o.GetLabels()[v1alpha1.LabelPolicyPreview]
	return ok
}
