// Package fleetpolicy shows the fleet's policy, and what a change of it would change.
package fleetpolicy

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	apipolicy "github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/yamlalias"
	"github.com/pelotech/ot-fleet/hub/policy"
)

// MaxFileBytes bounds a file with a policy; a ConfigMap has at most 1 MiB.
const MaxFileBytes = 1 << 20

// ParseFile reads a policy from a file: a ConfigMap, or the keys of its data.
func ParseFile(text []byte) (map[string]string, error) {
	if len(text) > MaxFileBytes {
		return nil, fmt.Errorf("it has more than %d bytes, and is no ConfigMap", MaxFileBytes)
	}
	if err := yamlalias.Check(text); err != nil {
		return nil, err
	}
	raw, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return nil, fmt.Errorf("it is not YAML: %w", err)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(raw, &fields); err != nil || fields == nil {
		return nil, errors.New("it is neither a ConfigMap nor keys with values, as in concurrency: \"3\"")
	}
	if _, isObject := fields["kind"]; isObject {
		var cm corev1.ConfigMap
		if err := json.Unmarshal(raw, &cm); err != nil {
			return nil, fmt.Errorf("it is no ConfigMap that the API server takes: %w", err)
		}
		if cm.Kind != "ConfigMap" {
			return nil, fmt.Errorf("it is a %s: give the policy's ConfigMap", cm.Kind)
		}
		if len(cm.BinaryData) > 0 {
			return nil, fmt.Errorf("key %w", apipolicy.BinaryErrors(cm.BinaryData)[0])
		}
		return cm.Data, nil
	}
	data := make(map[string]string, len(fields))
	for key, value := range fields {
		var scalar any
		_ = json.Unmarshal(value, &scalar) // it was JSON before
		switch v := scalar.(type) {
		case string:
			data[key] = v
		case bool, float64:
			data[key] = string(value)
		default:
			return nil, fmt.Errorf("key %s is no text: write a list as text, as in %s: |", key, key)
		}
	}
	return data, nil
}

// ApplySets returns the data of a policy with some changes, each as --set has it: KEY=VALUE
// for all clusters, or cluster=NAME,KEY=VALUE,… for one. KEY= without a value removes a key.
func ApplySets(data map[string]string, sets []string) (map[string]string, error) {
	changed := maps.Clone(data)
	if changed == nil {
		changed = map[string]string{}
	}
	for _, set := range sets {
		key, value, ok := strings.Cut(set, "=")
		switch {
		case !ok || strings.TrimSpace(key) == "":
			return nil, fmt.Errorf("--set %s: must be KEY=VALUE, or cluster=NAME,KEY=VALUE", set)
		case key == "cluster":
			overrides, err := addOverride(changed[policy.KeyOverrides], value)
			if err != nil {
				return nil, fmt.Errorf("--set %s: %w", set, err)
			}
			changed[policy.KeyOverrides] = overrides
		case value == "":
			delete(changed, key)
		default:
			changed[key] = value
		}
	}
	return changed, nil
}

// addOverride adds an override of one cluster to the end of a list, where it wins over those
// before it.
func addOverride(list, set string) (string, error) {
	cluster, pairs, ok := strings.Cut(set, ",")
	if !ok || cluster == "" {
		return "", errors.New("name a cluster and what to set there, as in cluster=bergen,concurrency=4")
	}
	override := map[string]any{"cluster": cluster}
	for pair := range strings.SplitSeq(pairs, ",") {
		key, value, ok := strings.Cut(pair, "=")
		if !ok || key == "" || value == "" {
			return "", fmt.Errorf("%q is not KEY=VALUE", pair)
		}
		override[key] = value
	}
	var overrides []any
	if err := yamlalias.Check([]byte(list)); err != nil {
		return "", fmt.Errorf("the overrides of the policy in force: %w", err)
	}
	if err := yaml.Unmarshal([]byte(list), &overrides); err != nil {
		return "", fmt.Errorf("the overrides of the policy in force are no list: %w", err)
	}
	text, err := yaml.Marshal(append(overrides, override))
	return string(text), err
}
