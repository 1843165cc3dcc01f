package machine

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	kubevirtv1 "kubevirt.io/api/core/v1"
)

// refused are what the agent decides, or what would take the root disk past it.
var refused = map[string]string{
	"runStrategy":         "say it in spec.runStrategy",
	"running":             "say it in spec.runStrategy",
	"instancetype":        "say it in spec.instancetype",
	"preference":          "say it in spec.preference",
	"dataVolumeTemplates": "the root disk is made of the image; make further DataVolumes by themselves and name them as volumes",
}

var errOverlay = errors.New("overlay")

// overlay merges over the spec of a KubeVirt VirtualMachine, in place.
func overlay(content map[string]any, raw *runtime.RawExtension) error {
	if raw == nil || len(raw.Raw) == 0 {
		return nil
	}
	var over map[string]any
	if err := utiljson.Unmarshal(raw.Raw, &over); err != nil {
		return fmt.Errorf("%w must be an object, with what belongs under spec of a KubeVirt VirtualMachine: %w", errOverlay, err)
	}
	for _, key := range sortedKeys(over) {
		if why, no := refused[key]; no {
			return fmt.Errorf("%w must not set %s: %s", errOverlay, key, why)
		}
		if slices.Contains([]string{"apiVersion", "kind", "metadata", "spec", "status"}, key) {
			return fmt.Errorf("%w must not have %s: it is merged over spec of the KubeVirt VirtualMachine, so give the content of spec alone, such as {\"template\": {…}}", errOverlay, key)
		}
	}
	if len(over) == 0 {
		return nil
	}
	spec, _ := content["spec"].(map[string]any)
	content["spec"] = mergeMaps(spec, over)

	var typed kubevirtv1.VirtualMachine
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(content, &typed, true); err != nil {
		text := strings.TrimPrefix(err.Error(), "strict decoding error: ")
		return fmt.Errorf("%w: what comes of it is no KubeVirt VirtualMachine: %s", errOverlay, text)
	}
	return nil
}

func mergeMaps(base, over map[string]any) map[string]any {
	if base == nil {
		base = map[string]any{}
	}
	for key, value := range over {
		if value == nil {
			delete(base, key)
		} else {
			base[key] = merge(base[key], value)
		}
	}
	return base
}

func merge(base, over any) any {
	switch over := over.(type) {
	case map[string]any:
		m, _ := base.(map[string]any)
		return mergeMaps(m, over)
	case []any:
		l, _ := base.([]any)
		return mergeLists(l, over)
	default:
		return over
	}
}

// mergeLists by name where all items of both have one.
func mergeLists(base, over []any) []any {
	if !named(base) || !named(over) {
		base = nil
	}
	for _, item := range over {
		i := -1
		if named(over) {
			i = slices.IndexFunc(base, func(b any) bool { return nameOf(b) == nameOf(item) })
		}
		if i < 0 {
			base = append(base, merge(nil, item))
		} else {
			base[i] = merge(base[i], item)
		}
	}
	return base
}

func named(list []any) bool {
	return len(list) > 0 && !slices.ContainsFunc(list, func(item any) bool { return nameOf(item) == "" })
}

func nameOf(item any) string {
	m, _ := item.(map[string]any)
	name, _ := m["name"].(string)
	return name
}

func sortedKeys(m map[string]any) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
