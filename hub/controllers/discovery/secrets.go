package discovery

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// secretReconciler creates a MemberCluster for each labelled Secret. Requests name the
// member, not the Secret: two Secrets may claim one name.
type secretReconciler struct {
	Options
	client client.Client
	live   client.Reader
	events events.EventRecorder
	// rules copy all labels: whoever may write Secrets beside those of the hub already
	// chooses the member's name, as whoever may write MemberClusters.
	rules Rules

	// missingSince is when a member's Secret was first missing. Only one worker uses
	// it.
	missingSince map[string]time.Time
}

func (s *secretReconciler) requestsForSecret(_ context.Context, secret client.Object) []reconcile.Request {
	name := secret.GetLabels()[v1alpha1.LabelMember]
	if name == "" || secret.GetNamespace() != s.Namespace {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: name}}}
}

func (s *secretReconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	claimants, err := secretsOfMember(ctx, s.client, s.Namespace, request.Name, client.MatchingFields{memberIndexField: request.Name})
	if err != nil {
		return reconcile.Result{}, err
	}
	member := &v1alpha1.MemberCluster{}
	switch err := s.client.Get(ctx, request.NamespacedName, member); {
	case apierrors.IsNotFound(err):
		member = nil
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("reading MemberCluster %s: %w", request.Name, err)
	}
	ours := member != nil && member.Labels[v1alpha1.LabelDiscovered] == originSecret
	switch {
	case ours && !hasSecretOf(claimants, member):
		var wait time.Duration
		if claimants, wait, err = s.claimantsAfterGrace(ctx, member); err != nil || wait > 0 {
			return reconcile.Result{RequeueAfter: wait}, err
		}
		if len(claimants) == 0 {
			return reconcile.Result{}, s.deleteMember(ctx, member)
		}
	default:
		delete(s.missingSince, request.Name)
		if len(claimants) == 0 {
			return reconcile.Result{}, nil
		}
	}

	if ours {
		preferCurrent(claimants, member)
	}
	secret := claimants[0]
	ref := &v1alpha1.SecretKeyRef{Name: secret.Name, Key: "kubeconfig"}
	for _, other := range claimants[1:] {
		s.recordWarning(&other, "NameTaken", "Secret %s is already member %s: change label %s of one of them", secret.Name, request.Name, v1alpha1.LabelMember)
	}
	switch {
	case member == nil:
		return reconcile.Result{}, s.createMember(ctx, request.Name, ref, &secret)
	case !ours:
		if current := member.Spec.Connection.KubeconfigSecretRef; current == nil || current.Name != secret.Name {
			s.recordWarning(&secret, "NameTaken", "MemberCluster %s exists and was not created from this Secret: change label %s of the Secret", request.Name, v1alpha1.LabelMember)
		}
		return reconcile.Result{}, nil
	}
	return reconcile.Result{}, s.updateMember(ctx, member, ref, &secret)
}

// updateMember gives a member the labels and the connection of its Secret: one after the other, since
// the API server refuses the connection of a member in quarantine that somebody switched to pull mode.
// The member's next status, which has it revoked, is the next try.
func (s *secretReconciler) updateMember(ctx context.Context, member *v1alpha1.MemberCluster, ref *v1alpha1.SecretKeyRef, secret *metav1.PartialObjectMetadata) error {
	if s.rules.copyLabels(member, secret.Labels) {
		if err := s.client.Update(ctx, member); err != nil {
			return fmt.Errorf("updating the labels of MemberCluster %s from Secret %s/%s: %w", member.Name, secret.Namespace, secret.Name, err)
		}
	}
	if current := member.Spec.Connection.KubeconfigSecretRef; current != nil && *current == *ref {
		return nil
	}
	member.Spec.Connection = v1alpha1.MemberConnection{KubeconfigSecretRef: ref}
	switch err := s.client.Update(ctx, member); {
	case apierrors.IsInvalid(err):
		s.recordWarning(secret, "UpdateRefused", "MemberCluster %s keeps its connection and does not use this Secret yet: %v", member.Name, err)
	case err != nil:
		return fmt.Errorf("connecting MemberCluster %s by Secret %s/%s: %w", member.Name, secret.Namespace, secret.Name, err)
	}
	return nil
}

// preferCurrent puts the Secret that a MemberCluster uses first. Invariant: no other Secret takes a member over
// while that one has its label, nor in the DeletionGrace after that.
func preferCurrent(claimants []metav1.PartialObjectMetadata, member *v1alpha1.MemberCluster) {
	if i := indexOfCurrent(claimants, member); i > 0 {
		claimants[0], claimants[i] = claimants[i], claimants[0]
	}
}

// indexOfCurrent returns which Secret a MemberCluster uses; -1 for none of them.
func indexOfCurrent(claimants []metav1.PartialObjectMetadata, member *v1alpha1.MemberCluster) int {
	ref := member.Spec.Connection.KubeconfigSecretRef
	return slices.IndexFunc(claimants, func(s metav1.PartialObjectMetadata) bool { return ref != nil && s.Name == ref.Name })
}

// hasSecretOf reports whether a MemberCluster does not wait for its Secret to come back. One that somebody gave
// another kind of connection uses no Secret.
func hasSecretOf(claimants []metav1.PartialObjectMetadata, member *v1alpha1.MemberCluster) bool {
	return indexOfCurrent(claimants, member) >= 0 || len(claimants) > 0 && member.Spec.Connection.KubeconfigSecretRef == nil
}

// claimantsAfterGrace returns the Secrets of a member whose own has been missing for DeletionGrace, or how long to
// wait. Neither a deletion nor another cluster can be undone, so it reads them live.
func (s *secretReconciler) claimantsAfterGrace(ctx context.Context, member *v1alpha1.MemberCluster) ([]metav1.PartialObjectMetadata, time.Duration, error) {
	since, known := s.missingSince[member.Name]
	if !known {
		since = time.Now()
		s.missingSince[member.Name] = since
	}
	if left := s.DeletionGrace - time.Since(since); left > 0 {
		return nil, left, nil
	}
	claimants, err := secretsOfMember(ctx, s.live, s.Namespace, member.Name, client.MatchingLabels{v1alpha1.LabelMember: member.Name})
	switch {
	case err != nil:
		return nil, 0, err
	case hasSecretOf(claimants, member):
		return nil, time.Second, nil // the cache shows it soon
	}
	delete(s.missingSince, member.Name)
	return claimants, 0, nil
}

// deleteMember deletes a MemberCluster without a Secret. One in quarantine stays, as in Rules.decide.
func (s *secretReconciler) deleteMember(ctx context.Context, member *v1alpha1.MemberCluster) error {
	if member.Spec.Quarantine != nil {
		recordKept(s.events, member, "The Secret with label "+v1alpha1.LabelMember+" is gone")
		return nil
	}
	ctrl.LoggerFrom(ctx).Info("Secret of the member was deleted; deleting its MemberCluster", "member", member.Name)
	return deleteMember(ctx, s.live, s.client, member)
}

func (s *secretReconciler) createMember(ctx context.Context, name string, ref *v1alpha1.SecretKeyRef, secret *metav1.PartialObjectMetadata) error {
	member := s.rules.newMember(name, originSecret, v1alpha1.MemberConnection{KubeconfigSecretRef: ref}, secret.Labels)
	switch err := s.client.Create(ctx, member); {
	case apierrors.IsInvalid(err):
		s.recordWarning(secret, "NameInvalid", "The value of label %s is not a valid name of a MemberCluster: %v", v1alpha1.LabelMember, err)
		return nil
	case err != nil:
		return fmt.Errorf("creating MemberCluster %s for Secret %s/%s: %w", name, secret.Namespace, secret.Name, err)
	}
	s.events.Eventf(member, nil, corev1.EventTypeNormal, "CreatedFromSecret", "Discover",
		"Secret %s/%s, by its label %s, is member %s: the hub creates the MemberCluster whenever it is deleted. To remove the member, delete the Secret", secret.Namespace, secret.Name, v1alpha1.LabelMember, name)
	return nil
}

func (s *secretReconciler) recordWarning(secret *metav1.PartialObjectMetadata, reason, format string, args ...any) {
	s.events.Eventf(secret, nil, corev1.EventTypeWarning, reason, "Discover", format, args...)
}

// memberIndexField indexes the metadata of Secrets by the member that they are labelled with. Without an
// index, checking every Secret would cost the square of the fleet's size.
const memberIndexField = "discovery.member"

// newSecretMetadata returns the metadata of a Secret without any content.
func newSecretMetadata() *metav1.PartialObjectMetadata {
	secret := &metav1.PartialObjectMetadata{}
	secret.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	return secret
}

func indexedMember(secret client.Object) []string {
	if member := secret.GetLabels()[v1alpha1.LabelMember]; member != "" {
		return []string{member}
	}
	return nil
}

// secretsOfMember returns the metadata of the Secrets that are labelled with a member's
// name, oldest first. The selector is of its label, or of memberIndexField.
func secretsOfMember(ctx context.Context, reader client.Reader, namespace, member string, selector client.ListOption) ([]metav1.PartialObjectMetadata, error) {
	var list metav1.PartialObjectMetadataList
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("SecretList"))
	if err := reader.List(ctx, &list, client.InNamespace(namespace), selector); err != nil {
		return nil, fmt.Errorf("listing the Secrets of member %s in namespace %s: %w", member, namespace, err)
	}
	claimants := slices.DeleteFunc(list.Items, func(s metav1.PartialObjectMetadata) bool { return !s.DeletionTimestamp.IsZero() })
	for i := range claimants {
		claimants[i].TypeMeta = newSecretMetadata().TypeMeta // for events
	}
	slices.SortFunc(claimants, func(a, b metav1.PartialObjectMetadata) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	return claimants, nil
}
