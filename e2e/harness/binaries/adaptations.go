package binaries

import (
	"bytes"
	"fmt"
	"strings"
)

// adaptation is a change to our sources of a program, which are written for the pinned version of
// its component.
type adaptation struct {
	component Component
	// minor is the minor version of the component that the change is for, such as v1.9.
	minor, file, old, new string
}

var adaptations = []adaptation{
	{
		component: KubeVirtComponent, minor: "v1.9", file: "virtapi/main.go",
		old: "controller.NewKubeInformerFactory(virt.RestClient(), virt, nil, namespace)",
		new: "controller.NewKubeInformerFactory(virt.RestClient(), virt, virt, nil, namespace)",
	},
	// CDI's operator registers this webhook apart from the others, from 1.66 on by default.
	{
		component: CDIComponent, minor: "v1.66", file: "webhooks.go",
		old: "	return mux, nil\n",
		new: "	mux.Handle(claimWebhookPath, webhooks.NewPvcMutatingWebhook(mixed))\n	return mux, nil\n",
	},
	{
		component: CDIComponent, minor: "v1.66", file: "webhooks.go",
		old: "	for _, object := range objects {\n",
		new: "	for _, object := range append(objects, newClaimWebhook()) {\n",
	},
	{
		component: CDIComponent, minor: "v1.66", file: "webhooks.go",
		old: "// registerWebhooks points",
		new: claimWebhook + "// registerWebhooks points",
	},
	{
		component: CDIComponent, minor: "v1.66", file: "webhooks.go",
		old: "	\"k8s.io/apimachinery/pkg/util/wait\"\n",
		new: "	metav1 \"k8s.io/apimachinery/pkg/apis/meta/v1\"\n	\"k8s.io/apimachinery/pkg/util/wait\"\n",
	},
}

const claimWebhook = `const claimWebhookPath = "/pvc-mutate"

func newClaimWebhook() *admissionv1.MutatingWebhookConfiguration {
	path, none, scope := claimWebhookPath, admissionv1.SideEffectClassNone, admissionv1.AllScopes
	return &admissionv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "cdi-api-pvc-mutate"},
		Webhooks: []admissionv1.MutatingWebhook{{
			Name: "pvc-mutate.cdi.kubevirt.io", SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
			ObjectSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"cdi.kubevirt.io/applyStorageProfile": "true"}},
			ClientConfig:   admissionv1.WebhookClientConfig{Service: &admissionv1.ServiceReference{Namespace: util.GetNamespace(), Name: "cdi-api", Path: &path}},
			Rules: []admissionv1.RuleWithOperations{{
				Operations: []admissionv1.OperationType{admissionv1.Create},
				Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"persistentvolumeclaims"}, Scope: &scope},
			}},
		}},
	}
}

`

// adapt returns a file of a program as it has to be for a version of its component.
func (r recipe) adapt(version string, file sourceFile) ([]byte, error) {
	content := file.content
	for _, a := range adaptations {
		if string(a.component) != r.directory || a.file != file.name || !strings.HasPrefix(version, a.minor+".") {
			continue
		}
		if bytes.Count(content, []byte(a.old)) != 1 {
			return nil, fmt.Errorf("adapting %s/%s to %s: %q is not there once", r.directory, a.file, version, a.old)
		}
		content = bytes.Replace(content, []byte(a.old), []byte(a.new), 1)
	}
	return content, nil
}
