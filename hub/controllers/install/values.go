package install

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/hub/helm"
)

const (
	// valuesConfigMap is the ConfigMap in the hub's namespace with the values for all members;
	// with a hyphen and a member's name behind it, those for one.
	valuesConfigMap = "ot-agent-values"
	// valuesKey of both.
	valuesKey = "values.yaml"
)

// parseValuesName is whose values a ConfigMap has: all members', or one's.
func parseValuesName(configMap string) (member string, all, is bool) {
	if configMap == valuesConfigMap {
		return "", true, true
	}
	member, is = strings.CutPrefix(configMap, valuesConfigMap+"-")
	return member, false, is && member != ""
}

// loadValues for a member. faulty is for whoever wrote them.
func (r *Reconciler) loadValues(ctx context.Context, member string) (values *helm.Values, faulty, err error) {
	var layers []helm.ValuesLayer
	for _, name := range []string{valuesConfigMap, valuesConfigMap + "-" + member} {
		key := client.ObjectKey{Namespace: r.Namespace, Name: name}
		cm := &corev1.ConfigMap{}
		switch err := r.Get(ctx, key, cm); {
		case apierrors.IsNotFound(err):
			continue
		case err != nil:
			return nil, nil, fmt.Errorf("reading ConfigMap %s with values of the agent's chart: %w", key, err)
		}
		text, is := cm.Data[valuesKey]
		if !is {
			return nil, fmt.Errorf("ConfigMap %s has no key %s", key, valuesKey), nil
		}
		layers = append(layers, helm.ValuesLayer{Name: "ConfigMap " + key.String(), Text: text})
	}
	values, faulty = r.Chart.MergeValues(layers...)
	return values, faulty, nil
}
