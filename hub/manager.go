package main

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/startup"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/controllers/connection"
	"github.com/pelotech/ot-fleet/hub/controllers/report"
)

func newScheme() *runtime.Scheme {
	return startup.NewScheme(clientgoscheme.AddToScheme, v1alpha1.AddToScheme, clusterv1.AddToScheme)
}

// cacheOptions bound what the hub keeps in memory: of Namespaces those of members, of
// ConfigMaps those beside the policy and, with installAgents, those in the hub's
// namespace, of Secrets those in the hub's namespace.
func cacheOptions(o options) cache.Options {
	ofMembers := labels.NewSelector()
	if exists, err := labels.NewRequirement(v1alpha1.LabelMember, selection.Exists, nil); err == nil {
		ofMembers = ofMembers.Add(*exists)
	}
	configMaps := map[string]cache.Config{o.Policy.Namespace: {}}
	if o.installAgents {
		configMaps[o.Namespace] = cache.Config{}
	}
	kinds := map[client.Object]cache.ByObject{
		&corev1.Namespace{}: {Label: ofMembers},
		&corev1.ConfigMap{}: {Namespaces: configMaps},
	}
	reports := &metav1.PartialObjectMetadata{}
	reports.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("ClusterReport"))
	kinds[reports] = cache.ByObject{Transform: report.StripMetadata}
	maps.Copy(kinds, connection.SecretCacheOptions(o.Namespace))
	return cache.Options{DefaultTransform: cache.TransformStripManagedFields(), ByObject: kinds}
}
