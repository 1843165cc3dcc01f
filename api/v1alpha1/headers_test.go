package v1alpha1_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestParseHeader(t *testing.T) {
	for header, want := range map[string][2]string{
		"X-Tenant: blue":                 {"X-Tenant", "blue"},
		"X-Tenant:blue":                  {"X-Tenant", "blue"},
		"Authorization: Bearer a.b-c":    {"Authorization", "Bearer a.b-c"},
		"x_y.z: a: b":                    {"x_y.z", "a: b"},
		"User-Agent: ours/1.0 (a; b)":    {"User-Agent", "ours/1.0 (a; b)"},
		"X-Tenant":                       {},
		"X-Tenant:":                      {},
		"X-Tenant: ":                     {},
		": blue":                         {},
		"X Tenant: blue":                 {},
		"X-Tenant : blue":                {},
		"X-Tenant: blue\n":               {},
		"X-Tenant: blue\r\nHost: x":      {},
		"X-Tenant: bl\tue":               {},
		"X-Tenant: blue ":                {},
		"X-Tenant: blåbær":               {},
		"Host: images.example.com":       {},
		"hOST: images.example.com":       {},
		"Range: bytes=0-1":               {},
		"Transfer-Encoding: chunked":     {},
		"Content-Length: 0":              {},
		"Hosting: this one is no header": {"Hosting", "this one is no header"},
		"Metadata: true":                 {},
		"METADATA-Flavor:Google":         {},
		"x-google-metadata-request: 1":   {},
		"X-aws-ec2-metadata-token: a":    {},
		"X-Aliyun-ECS-Metadata-Token: a": {},
		"Metadata_Flavor: Google":        {},
		"authorization: bearer  ORACLE":  {},
		"Authorization: Bearer Oracle.1": {"Authorization", "Bearer Oracle.1"},
		"X-Metadataset: a":               {"X-Metadataset", "a"},
		"X-About: metadata: of ours":     {"X-About", "metadata: of ours"},
	} {
		name, value, ok := v1alpha1.ParseHeader(header)
		assert.Equal(t, want, [2]string{name, value}, header)
		assert.Equal(t, want[0] != "", ok, header)
	}
}

func TestFindHeaderProblem(t *testing.T) {
	secret := func(keys, size int) map[string][]byte {
		data := map[string][]byte{}
		for i := range keys {
			data[fmt.Sprintf("k%02d", i)] = []byte("X: " + strings.Repeat("v", size-3))
		}
		return data
	}
	for name, tt := range map[string]struct {
		data                 map[string][]byte
		wantKey, wantProblem string
	}{
		"empty":           {nil, "", "is empty"},
		"the most keys":   {secret(16, 1<<10), "", ""},
		"too many keys":   {secret(17, 10), "", "has more than 16 keys"},
		"the most bytes":  {secret(2, 8<<10), "", ""},
		"a large value":   {secret(1, 8<<10+1), "k00", "has more than 8192 bytes"},
		"too large":       {secret(3, 6<<10), "", "has more than 16384 bytes of headers"},
		"no header":       {map[string][]byte{"a": []byte("A: b"), "b": []byte("c")}, "b", "is no HTTP header"},
		"of the metadata": {map[string][]byte{"a": []byte("Metadata: true")}, "a", "metadata services"},
	} {
		key, problem := v1alpha1.FindHeaderProblem(tt.data)
		assert.Equal(t, tt.wantKey, key, name)
		assert.Equal(t, tt.wantProblem == "", problem == "", name)
		assert.Contains(t, problem, tt.wantProblem, name)
	}
}

func TestRedactHeaders(t *testing.T) {
	spec := &v1alpha1.VMDiskImageSpec{ExtraHeaders: []string{"Authorization: Bearer s3cr3t.token", "X-Key:k3y-of-ours", "X-Level: 1"}, SecretExtraHeaders: []string{"s"}}
	for text, want := range map[string]string{
		"nothing to redact on level 1":                               "nothing to redact on level 1",
		`started nbdkit [header=Authorization: Bearer s3cr3t.token]`: `started nbdkit [header=Authorization: …]`,
		`token s3cr3t.token refused, key k3y-of-ours too`:            `token … refused, key … too`,
		"cut off at the end: Bearer s3cr3t.to":                       "cut off at the end: …",
		"cut off by us: k3y-of…; advice":                             "cut off by us: …; advice",
		`net/http: invalid header field name "p4ssword of ours"`:     `net/http: invalid header field name "…"`,
		`net/http: invalid header field value for "X \" y" sent`:     `net/http: invalid header field value for "…" sent`,
	} {
		assert.Equal(t, want, spec.RedactHeaders(text))
	}
}

func TestRedactedTextStaysRedacted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringMatching(`[ab ]{0,3}[a-c]{4,8}`)
		values := rapid.SliceOfN(word, 1, 3).Draw(t, "values")
		spec := &v1alpha1.VMDiskImageSpec{}
		for _, value := range values {
			spec.ExtraHeaders = append(spec.ExtraHeaders, "X: "+value)
		}
		text := strings.Join(rapid.SliceOfN(rapid.OneOf(rapid.SampledFrom(values), word, rapid.SampledFrom([]string{"…", "the importer says: "})), 1, 6).Draw(t, "text"), "")
		text = v1alpha1.Truncate(text, rapid.IntRange(4, 60).Draw(t, "limit"))

		redacted := spec.RedactHeaders(text)

		for _, value := range values {
			if value = strings.TrimSpace(value); strings.Contains(redacted, value) {
				t.Fatalf("%q still has %q", redacted, value)
			}
		}
		if again := spec.RedactHeaders(redacted); again != redacted {
			t.Fatalf("%q was redacted to %q, and then to %q: statuses are compared with what is stored", text, redacted, again)
		}
	})
}

func TestRedactError(t *testing.T) {
	spec := &v1alpha1.VMDiskImageSpec{ExtraHeaders: []string{"Authorization: Bearer s3cr3t.token"}}
	kind := schema.GroupKind{Group: "pelotech.ot", Kind: "VMDiskImage"}
	refused := apierrors.NewInvalid(kind, "a", field.ErrorList{field.Invalid(field.NewPath("spec", "extraHeaders"), spec.ExtraHeaders, "no")})
	require.ErrorContains(t, refused, "s3cr3t")

	redacted := spec.RedactError(fmt.Errorf("creating it: %w", refused))

	require.Error(t, redacted)
	assert.True(t, apierrors.IsInvalid(redacted))
	var answer apierrors.APIStatus
	require.ErrorAs(t, redacted, &answer)
	assert.NotContains(t, fmt.Sprintf("%v %+v", redacted, answer.Status()), "s3cr3t")
	require.ErrorContains(t, refused, "s3cr3t", "the answer of others stays")
	other := errors.New("no answer")
	assert.Equal(t, other, spec.RedactError(other))
	assert.NoError(t, spec.RedactError(nil))
}
