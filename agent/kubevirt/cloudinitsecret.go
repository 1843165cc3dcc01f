package kubevirt

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/agent/cloudinit"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// BuildCloudInitSecret returns the Secret that the KubeVirt VirtualMachine refers to for
// user data and network data. KubeVirt defines its keys.
func BuildCloudInitSecret(vm *v1alpha1.VirtualMachine, cfg cloudinit.Config) *corev1.Secret {
	secret := &corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: ownedObjectMeta(vm, cloudinit.SecretName(vm)),
		Type:       corev1.SecretTypeOpaque,
		Data:       map[string][]byte{"userdata": cfg.UserData},
	}
	if cfg.NetworkData != nil {
		secret.Data["networkdata"] = cfg.NetworkData
	}
	return secret
}
