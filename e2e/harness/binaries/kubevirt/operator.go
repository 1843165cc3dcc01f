package main

import (
	"encoding/json"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"kubevirt.io/kubevirt/pkg/virt-operator/resource/generate/components"
	"kubevirt.io/kubevirt/pkg/virt-operator/resource/generate/rbac"
)

const namespace = "kubevirt"

// writeOperator writes what KubeVirt's release publishes as kubevirt-operator.yaml
// (manifests/release/kubevirt-operator.yaml.in), for an image of the operator
// that is built elsewhere. The operator takes the names of all other images from
// its own: the same repository and tag.
func writeOperator(to io.Writer, image string) error {
	crd, err := components.NewKubeVirtCrd()
	if err != nil {
		return fmt.Errorf("making the manifest of KubeVirt's operator: %w", err)
	}
	operator := components.NewOperatorDeployment(namespace, "", "", "", "2", "", "",
		"", "", "", "", "", "", "", "", "", "", "", "", image, corev1.PullIfNotPresent)
	operator.Spec.Replicas = ptr.To[int32](1)
	objects := append([]any{
		&corev1.Namespace{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
			ObjectMeta: metav1.ObjectMeta{Name: namespace, Labels: map[string]string{"kubevirt.io": "", "pod-security.kubernetes.io/enforce": "privileged"}},
		},
		crd, components.NewKubeVirtPriorityClassCR(),
	}, rbac.GetAllOperator(namespace)...)
	for _, object := range append(objects, operator) {
		if err := json.NewEncoder(to).Encode(object); err != nil {
			return fmt.Errorf("writing the manifest of KubeVirt's operator: %w", err)
		}
	}
	return nil
}
