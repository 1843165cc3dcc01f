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
	// valuesConfigMap names the ConfigMap in the hub's namespace with the values for all
	// members. With a hyphen and a member's name appended it has those of one member.
	valuesConfigMap = "ot-agent-values"
	// valuesKey of these ConfigMaps.
	valuesKey = "values.yaml"
)

// parseValuesName returns whose values a ConfigMap has: those of all members or of one.
func parseValuesName(configMap string) (member string, all, ok bool) {
	if configMap == valuesConfigMap {
		return "", true, true
	}
	member, ok = strings.CutPrefix(configMap, valuesConfigMap+"-")
	return member, false, ok && member != ""
}

// loadValues returns the values of a member. invalid is the error of their author.
func (r *Reconciler) loadValues(ctx context.Context, member string) (values *helm.Values, invalid, err error) {
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
		text, ok := cm.Data[valuesKey]
		if !ok {
			return nil, fmt.Errorf("ConfigMap %s has no key %s", key, valuesKey), nil
		}
		layers = append(layers, helm.ValuesLayer{Name: "ConfigMap " + key.String(), Text: text})
	}
	values, invalid = r.Chart.MergeValues(layers...)
	return values, invalid, nil
}
