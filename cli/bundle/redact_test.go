package bundle

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"
)

// readSchemas returns the schemas of all our kinds, as the charts install them.
func readSchemas(t require.TestingT) map[string]apiextensionsv1.JSONSchemaProps {
	schemas, err := schemasOnce()
	require.NoError(t, err)
	require.Len(t, schemas, 13, "the kinds of the charts")
	return schemas
}

var schemasOnce = sync.OnceValues(func() (map[string]apiextensionsv1.JSONSchemaProps, error) {
	schemas := map[string]apiextensionsv1.JSONSchemaProps{}
	for _, pattern := range []string{"../../charts/*/files/crds/*.yaml", "../../charts/*/files/mailbox/*.yaml"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				return nil, err
			}
			var crd apiextensionsv1.CustomResourceDefinition
			if err := yaml.Unmarshal(text, &crd); err != nil {
				return nil, err
			}
			schemas[crd.Spec.Names.Kind] = *crd.Spec.Versions[0].Schema.OpenAPIV3Schema
		}
	}
	return schemas, nil
})

// planter makes objects of a schema, and plants a secret in every text of it.
type planter struct {
	t       *rapid.T
	secrets []string
}

func (p *planter) secret() string {
	shape := rapid.SampledFrom([]string{"hunter2 %d!", "p@ss w0rd-%d", "Authorization: Bearer %d-abcdef", "-----BEGIN KEY-----\n%dMIIB\n", "<%d&secret>", "geheim %d ü"}).Draw(p.t, "shape")
	secret := fmt.Sprintf(shape, 100000+len(p.secrets))
	p.secrets = append(p.secrets, secret)
	return secret
}

func (p *planter) object(schema apiextensionsv1.JSONSchemaProps, path string) any {
	switch {
	case schema.XPreserveUnknownFields != nil && *schema.XPreserveUnknownFields:
		if strings.HasSuffix(path, ".spec.images[].spec") { // of a ClusterPlan: a VMDiskImage's
			return p.object(readSchemas(p.t)["VMDiskImage"].Properties["spec"], path)
		}
		return map[string]any{"name": p.secret(), "spec": map[string]any{"message": p.secret(), "list": []any{p.secret(), map[string]any{"url": p.secret()}}}, p.secret(): "x"}
	case len(schema.Properties) > 0 || schema.Type == "object":
		fields := map[string]any{}
		for _, name := range slices.Sorted(maps.Keys(schema.Properties)) { // in order: a failure is repeated
			fields[name] = p.object(schema.Properties[name], path+"."+name)
		}
		if schema.AdditionalProperties != nil && schema.AdditionalProperties.Schema != nil {
			fields["concurrency"], fields["example.com/key"] = p.secret(), p.secret()
		}
		return fields
	case schema.Type == "array":
		return []any{p.object(*schema.Items.Schema, path+"[]")}
	case schema.Type == "integer" || schema.Type == "number":
		return int64(7)
	case schema.Type == "boolean":
		return true
	default:
		return p.text(path)
	}
}

// text is a secret, or in a sentence of a program one in a URL.
func (p *planter) text(path string) string {
	if classOf(strings.Split(strings.ReplaceAll(strings.TrimPrefix(path, "."), "[]", ""), "."), false) == classText {
		hidden := fmt.Sprintf("q%dsignature", 100000+len(p.secrets))
		p.secrets = append(p.secrets, hidden)
		return "getting https://user:" + hidden + "@host/a?token=" + hidden + " failed"
	}
	return p.secret()
}

// No text of any field of our kinds leaves with the secret that was planted in it, but texts of
// programs, from which URLs' secrets and what is private elsewhere are taken.
func TestPlantedSecretsNeverAppear(t *testing.T) {
	schemas := readSchemas(t)
	for kind, schema := range schemas {
		t.Run(kind, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				p := &planter{t: t}
				object := p.object(schema, "").(map[string]any)
				object["metadata"] = map[string]any{
					"name": "a", "annotations": map[string]any{"kubectl.kubernetes.io/last-applied-configuration": p.secret(), "pelotech.ot/retry": p.secret()},
					"labels": map[string]any{"pelotech.ot/team": p.secret(), p.secret(): "x"}, "managedFields": []any{p.secret()},
				}
				private := p.secret()
				object["nobodyListed"] = private
				if status, ok := object["status"].(map[string]any); ok {
					status["message"] = "the guest says: " + private
				}
				r := NewRedactor([]byte("key"))
				r.Learn(object)
				text, err := json.Marshal(r.Object(object))
				require.NoError(t, err)
				log := r.Text("error: " + strings.Join(strings.Fields(private), " ") + " and " + private)
				plain := unescape(t, text) + log
				for _, secret := range p.secrets {
					for _, part := range strings.Fields(secret) {
						if strings.ContainsAny(part, "0123456789") && len(part) >= minWordBytes {
							requireAbsent(t, plain, part)
						}
					}
					requireAbsent(t, plain, secret)
				}
				require.Positive(t, r.Count())
			})
		})
	}
}

// requireAbsent shows where a secret is.
func requireAbsent(t require.TestingT, text, secret string) {
	if at := strings.Index(text, secret); at >= 0 {
		require.Failf(t, "a secret is shown", "%q in …%q", secret, text[max(0, at-100):min(len(text), at+len(secret)+100)])
	}
}

// unescape returns all texts of a JSON document as they are.
func unescape(t require.TestingT, text []byte) string {
	var decoded any
	require.NoError(t, json.Unmarshal(text, &decoded))
	var b strings.Builder
	var collect func(any)
	collect = func(value any) {
		switch v := value.(type) {
		case map[string]any:
			for key, item := range v {
				b.WriteString(key + "\n")
				collect(item)
			}
		case []any:
			for _, item := range v {
				collect(item)
			}
		case string:
			b.WriteString(v + "\n")
		}
	}
	collect(decoded)
	return b.String()
}

// What a person on call needs is still there.
func TestHarmlessFieldsStay(t *testing.T) {
	var object map[string]any
	require.NoError(t, yaml.Unmarshal([]byte(`
apiVersion: pelotech.ot/v1alpha1
kind: VMDiskImage
metadata: {name: ubuntu-22, namespace: vmdi-farm, labels: {app.kubernetes.io/name: ot-agent, team: blue}}
spec: {name: The big one, sourceType: http, url: "https://images.example.com/a.qcow2?X-Signature=abc", checksum: "sha256:00ff", diskSize: 24Gi, priority: 3, secretRef: source, extraHeaders: ["X-Tenant: blue-tenant-7"]}
status:
  phase: Failed
  reason: NotFound
  message: "the source answered 404 to X-Tenant: blue-tenant-7"
  conditions: [{type: Ready, status: "False", reason: NotFound, lastTransitionTime: "2026-11-26T12:00:00Z", message: see status}]
`), &object))
	r := NewRedactor([]byte("key"))
	r.Learn(object)
	got := r.Object(object)
	text, err := yaml.Marshal(got)
	require.NoError(t, err)
	for _, want := range []string{
		"name: ubuntu-22", "app.kubernetes.io/name: ot-agent", "url: https://images.example.com/a.qcow2?…", "checksum: sha256:00ff", "diskSize: 24Gi", "priority: 3", "secretRef: source",
		"reason: NotFound", "type: Ready", "lastTransitionTime: \"2026-11-26T12:00:00Z\"", "the source answered 404 to <redacted",
	} {
		assert.Contains(t, string(text), want)
	}
	for _, private := range []string{"blue", "The big one", "X-Signature"} {
		assert.NotContains(t, string(text), private)
	}
	assert.Equal(t, got, r.Object(object), "the same markers for the same values")
}

// Why a deadline has passed, or a retry waits, is in times and names of clusters.
func TestFieldsOfDeadlinesStay(t *testing.T) {
	const stored = `status:
  observedRetry: because Ann asked
  pendingRetries:
  - lab
  uptime:
    online:
    - from: "2026-11-26T12:00:00Z"
      secondsBefore: 60
      until: "2026-11-26T13:00:00Z"
    open:
    - from: "2026-11-26T12:00:00Z"
  versions:
  - taken: true
  waves:
  - awaitedClusters:
    - lab
    firstDoneAt: "2026-11-26T12:00:00Z"
`
	var object map[string]any
	require.NoError(t, yaml.Unmarshal([]byte(stored), &object))
	r := NewRedactor([]byte("key"))
	r.Learn(object)
	text, err := yaml.Marshal(r.Object(object))
	require.NoError(t, err)
	const private = "  observedRetry: because Ann asked\n"
	assert.NotContains(t, string(text), "Ann")
	for line := range strings.Lines(strings.Replace(stored, private, "", 1)) {
		assert.Contains(t, string(text), line)
	}
}

func TestTexts(t *testing.T) {
	r := NewRedactor([]byte("key"))
	r.Learn(map[string]any{"spec": map[string]any{
		"users":     []any{map[string]any{"name": "ubuntu", "plain_text_passwd": "ubuntu"}, map[string]any{"name": "anna", "plain_text_passwd": "correcthorse"}},
		"cloudInit": map[string]any{"userData": "#cloud-config\nchpasswd: {list: 'root:batterystaple9'}"},
	}})
	for text, want := range map[string]string{
		"user anna logged in":                       "user anna logged in",
		"wrong password correcthorse":               "wrong password <redacted sha256:" + r.marker("correcthorse")[17:],
		"list of root:batterystaple9 is read":       "list of " + r.marker("root:batterystaple9") + " is read",
		"GET https://a/b?c=d failed":                "GET https://a/b?… failed",
		"Authorization: Bearer abcdefgh":            "Authorization: Bearer " + r.marker("abcdefgh"),
		`{"token":"s3cr3t-token"}`:                  `{"token":"` + r.marker("s3cr3t-token") + `"}`,
		"ubuntu is the name of an image and a user": "ubuntu is the name of an image and a user",
	} {
		assert.Equal(t, want, r.Text(text))
	}
}

// A hash cannot be tried against words: the same value has another one in the next bundle.
func TestHashesAreOfOneBundle(t *testing.T) {
	object := func() map[string]any {
		return map[string]any{"spec": map[string]any{"overlay": "hunter2", "name": "hunter2"}}
	}
	first := NewRedactor([]byte("one")).Object(object())["spec"].(map[string]any)
	second := NewRedactor([]byte("two")).Object(object())["spec"].(map[string]any)
	assert.Equal(t, first["overlay"], first["name"])
	assert.NotEqual(t, first["overlay"], second["overlay"])
	sum := sha256.Sum256([]byte("hunter2"))
	assert.NotContains(t, first["overlay"], hex.EncodeToString(sum[:hashBytes]))
}
