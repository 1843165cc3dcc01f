package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	apipolicy "github.com/pelotech/ot-fleet/api/policy"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/api/yamlalias"
)

const (
	keyCluster  = "cluster"
	keySelector = "selector"
)

// parseOverrides reads the list of overrides and validates each by itself.
func parseOverrides(text string) (overrides []override, errs []apipolicy.KeyError) {
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	fail := func(key, format string, args ...any) {
		errs = append(errs, apipolicy.KeyError{Key: key, Message: fmt.Sprintf(format, args...)})
	}
	if apipolicy.HasSeveralDocuments(text) {
		fail(KeyOverrides, "it is more than one YAML document, of which only the first would count: make it one list")
		return nil, errs
	}
	if err := yamlalias.CheckOverrides([]byte(text)); err != nil {
		fail(KeyOverrides, "%v", err)
		return nil, errs
	}
	raw, err := yaml.YAMLToJSONStrict([]byte(text))
	if err != nil {
		fail(KeyOverrides, "it is not YAML: %s", singleLine(err))
		return nil, errs
	}
	var items []json.RawMessage
	if err := json.Unmarshal(raw, &items); err != nil {
		fail(KeyOverrides, "it is not a list: each override starts with a dash, as in \"- cluster: frankfurt\"")
		return nil, errs
	}
	for i, item := range items {
		path := fmt.Sprintf("%s[%d]", KeyOverrides, i)
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(item, &fields); err != nil || fields == nil {
			fail(path, "an override is a map: cluster or selector, and the keys of the policy that it sets")
			continue
		}
		o, bad := parseOverride(path, fields)
		errs = append(errs, bad...)
		overrides = append(overrides, o)
	}
	return overrides, errs
}

func parseOverride(path string, fields map[string]json.RawMessage) (o override, errs []apipolicy.KeyError) {
	fail := func(key, format string, args ...any) {
		errs = append(errs, apipolicy.KeyError{Key: key, Message: fmt.Sprintf(format, args...)})
	}
	cluster, byCluster := fields[keyCluster]
	selector, bySelector := fields[keySelector]
	switch {
	case byCluster == bySelector:
		fail(path, "name exactly one of cluster and selector: which members is it for?")
	case byCluster:
		if err := json.Unmarshal(cluster, &o.cluster); err != nil || len(validation.IsDNS1123Label(o.cluster)) > 0 {
			fail(path+"."+keyCluster, "%s is not the name of a MemberCluster", cluster)
		}
		o.source = "override cluster=" + o.cluster
	default:
		var err error
		if o, err = parseSelector(selector); err != nil {
			fail(path+"."+keySelector, "%s", singleLine(err))
		}
	}

	o.values = map[string]string{}
	known := overridableKeys()
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		at := path + "." + key
		switch {
		case key == keyCluster || key == keySelector:
			continue
		case isFleetOnlyKey(key):
			fail(at, "it is for the whole fleet: set it at the top of the ConfigMap")
			continue
		case !slices.Contains(known, key):
			fail(at, "there is no such key: those of an override are cluster or selector, and %s", strings.Join(known, ", "))
			continue
		}
		if key == apipolicy.KeyWindows {
			text, bad := decodeWindows(at, fields[key])
			o.values[key], errs = text, append(errs, bad...)
			continue
		}
		text, err := decodeScalar(fields[key])
		if err != nil {
			fail(at, "%s", err)
			o.values[key] = ""
			continue
		}
		o.values[key] = text
		if key == KeyWeight {
			if _, err := parseWeight(text); err != nil {
				fail(at, "%s", err)
			}
			continue
		}
		// Backoff 0 is valid with every other key; the key that bounds it may be set
		// elsewhere.
		alone := map[string]string{"retryBackoffDuration": "0s", key: text}
		_, _, bad := apipolicy.Parse(alone)
		for _, e := range bad {
			fail(at, "%s", e.Message)
		}
	}
	if len(o.values) == 0 && len(errs) == 0 {
		fail(path, "it sets nothing: give it at least one of %s", strings.Join(known, ", "))
	}
	return o, errs
}

// parseSelector refuses an empty selector, which would match every member: keys for all
// members stand at the top of the ConfigMap.
func parseSelector(raw json.RawMessage) (override, error) {
	var s metav1.LabelSelector
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) && wrong.Type.String() == "string" {
			return override{}, fmt.Errorf("%s takes text only: put the %s in quotes, as in edge: \"true\"", wrong.Field, wrong.Value)
		}
		return override{}, fmt.Errorf("it is not a label selector with matchLabels or matchExpressions: %w", err)
	}
	if len(s.MatchLabels) == 0 && len(s.MatchExpressions) == 0 {
		return override{}, errors.New("the selector is empty: set keys for every member at the top of the ConfigMap")
	}
	selector, err := v1alpha1.ParseSelector(&s)
	if err != nil {
		return override{}, fmt.Errorf("it is not a valid label selector: %w", err)
	}
	return override{selector: selector, source: "override " + metav1.FormatLabelSelector(&s)}, nil
}

// decodeScalar returns a value as it was written: text, a number, true or false.
func decodeScalar(raw json.RawMessage) (string, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return "", err
	}
	switch v := v.(type) {
	case string:
		return v, nil
	case json.Number:
		return v.String(), nil
	case bool:
		return fmt.Sprint(v), nil
	default:
		return "", fmt.Errorf("%s is not a value: give text, a number, true or false", v1alpha1.SanitizeText(string(raw), 64))
	}
}

func singleLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }
