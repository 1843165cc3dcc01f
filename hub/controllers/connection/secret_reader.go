package connection

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// SecretCacheOptions caches only the metadata of Secrets in the hub's namespace,
// without Helm's, and without annotations, because kubectl apply stores the content
// there. A replica reads the content of its members' Secrets live, when they change.
func SecretCacheOptions(namespace string) map[client.Object]cache.ByObject {
	return map[client.Object]cache.ByObject{
		&corev1.Secret{}: {
			Namespaces: map[string]cache.Config{namespace: {}},
			Field:      fields.OneTermNotEqualSelector("type", "helm.sh/release.v1"),
			Transform: func(o any) (any, error) {
				if secret, ok := o.(metav1.Object); ok {
					secret.SetAnnotations(nil)
					secret.SetManagedFields(nil)
				}
				return o, nil
			},
		},
	}
}

// SecretReader reads Secrets of the hub's namespace.
type SecretReader struct {
	// Cached has the metadata of all of them; Live reads their content.
	Cached, Live client.Reader
	Namespace    string
}

// currentVersion returns the cached version of a Secret; the zero version if it does
// not exist.
func (s *SecretReader) currentVersion(ctx context.Context, name string) (secretVersion, error) {
	metadata := &metav1.PartialObjectMetadata{}
	metadata.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	switch err := s.Cached.Get(ctx, types.NamespacedName{Namespace: s.Namespace, Name: name}, metadata); {
	case apierrors.IsNotFound(err):
		return secretVersion{}, nil
	case err != nil:
		return secretVersion{}, fmt.Errorf("reading the metadata of Secret %s/%s: %w", s.Namespace, name, err)
	}
	return versionOf(metadata), nil
}

// readSecret returns a Secret, or nil if the cache or the API server does not have it.
func (s *SecretReader) readSecret(ctx context.Context, name string) (*corev1.Secret, error) {
	version, err := s.currentVersion(ctx, name)
	if err != nil || version == (secretVersion{}) {
		return nil, err
	}
	secret := &corev1.Secret{}
	switch err := s.Live.Get(ctx, types.NamespacedName{Namespace: s.Namespace, Name: name}, secret); {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading Secret %s/%s: %w", s.Namespace, name, err)
	}
	return secret, nil
}

type secretVersion struct {
	uid             types.UID
	resourceVersion string
}

func versionOf(o metav1.Object) secretVersion {
	return secretVersion{o.GetUID(), o.GetResourceVersion()}
}

// tokenInUse returns the token that the hub stored in place of the one in a given
// kubeconfig, or that one itself.
func (s *SecretReader) tokenInUse(ctx context.Context, member *v1alpha1.MemberCluster, kubeconfig []byte, given string) (string, error) {
	if member.Spec.Connection.KubeconfigSecretRef == nil {
		return given, nil
	}
	stored, err := s.readSecret(ctx, TokenSecretName(member.Name))
	if err != nil {
		return "", err
	}
	purpose, err := givenPurpose(member, kubeconfig)
	if err != nil {
		return "", err
	}
	if token, known := tokenFromSecret(stored, purpose); known {
		return token.value, nil
	}
	return given, nil
}
