package v1alpha1_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestRedactURL(t *testing.T) {
	for given, want := range map[string]string{
		"":                                   "",
		"https://h/p":                        "https://h/p",
		"https://h:8443/a b/p.qcow2":         "https://h:8443/a b/p.qcow2",
		"https://[fd00::1]:8443/p":           "https://[fd00::1]:8443/p",
		"https://h/p?X-Sig=a b&c=d":          "https://h/p?…",
		"https://h/p#token":                  "https://h/p#…",
		"https://h?a=b":                      "https://h?…",
		"https://user:pass@h/p":              "https://h/p",
		"https://u@x:p@ss@h:1/p":             "https://h:1/p",
		"https://user:pa/ss@h/p":             "https://…/ss@h/p",
		"https://user:pa?ss@h/p":             "https://…?…",
		"docker://quay.io/disk@sha256:12":    "docker://quay.io/disk@sha256:12",
		"s3://bucket/key?versionId=1":        "s3://bucket/key?…",
		"/p?sig=1":                           "/p?…",
		"https://a/p,https://user:pass@b/q?": "https://a/p,https://b/q?…",
	} {
		assert.Equal(t, want, v1alpha1.RedactURL(given), given)
	}
}

func TestRedactURLs(t *testing.T) {
	for given, want := range map[string]string{
		"why? because of /a and a=b":                            "why? because of /a and a=b",
		"is the unit missing, as in 24Gi?":                      "is the unit missing, as in 24Gi?",
		"image quay.io/a@sha256:12 of user a@b.c":               "image quay.io/a@sha256:12 of user a@b.c",
		`Get "https://h/p?sig=1": dial tcp 10.0.0.1:443: EOF`:   `Get "https://h/p?…": dial tcp 10.0.0.1:443: EOF`,
		`Get "https://h/p?a=\"1\"&sig=2": EOF`:                  `Get "https://h/p?…": EOF`,
		`Get "https://h/p?a b=1": EOF`:                          `Get "https://h/p?…": EOF`,
		`url="https://h/p?a b=1" is bad, see "x y"`:             `url="https://h/p?…" is bad, see "x y"`,
		`Get "https://h/p?a b=1`:                                `Get "https://h/p?…`,
		`HEAD /p?sig=1 failed`:                                  `HEAD /p?… failed`,
		`Location: ?sig=1`:                                      `Location: ?…`,
		`(see https://h/p?sig=1).`:                              `(see https://h/p?…).`,
		`size of URL [https://user:pass@h/p?sig=1]: error`:      `size of URL [https://h/p?…]: error`,
		"unable to get https://h/a?sig=1\nor https://h/b?sig=2": "unable to get https://h/a?…\nor https://h/b?…",
		`parse "https://user:pa?ss@h/p": invalid`:               `parse "https://…?…": invalid`,
		`proxyconnect tcp: http://user:pass@proxy:3128`:         `proxyconnect tcp: http://proxy:3128`,
	} {
		assert.Equal(t, want, v1alpha1.RedactURLs(given), given)
	}
}

func TestRedactSource(t *testing.T) {
	const checksum = " sha256:00"
	for _, kept := range []string{"", "blank", "http https://h/p", "http https://h/a b" + checksum, "registry docker://quay.io/a@sha256:12"} {
		assert.Equal(t, kept, v1alpha1.RedactSource(kept))
	}
	seen := map[string]string{}
	for _, source := range []string{
		"http https://h/p?a=1", "http https://h/p?a=2", "http https://h/p?a=1 b=1", "http https://h/p?a=1" + checksum, "http https://h/p?a=1#x",
		"http https://h/p?a=1 0123456789ab", "s3 https://h/p?a=1", "s3 https://user:a=1@h/p",
	} {
		redacted := v1alpha1.RedactSource(source)
		assert.NotContains(t, redacted, "=1")
		assert.NotContains(t, redacted, "0123456789ab")
		assert.Equal(t, redacted, v1alpha1.RedactSource(redacted), "once")
		assert.Equal(t, strings.HasSuffix(source, checksum), strings.HasSuffix(redacted, checksum))
		assert.Empty(t, seen[redacted], "%s looks like %s", source, seen[redacted])
		seen[redacted] = source
	}
}

func TestErrorsOfNetURLAreRedacted(t *testing.T) {
	for _, given := range []string{
		"https://h:port/p?sig=secret",
		"https://h/p%zz?sig=secret",
		"https://user:secret@h/p%zz",
		"https://h/p?sig=secret\x7f",
		"https://h /p?sig=secret",
	} {
		_, err := url.Parse(given)
		if assert.Error(t, err, given) {
			assert.NotContains(t, v1alpha1.SanitizeText(err.Error(), 512), "secret")
		}
	}
}

// By an issuer without a prefix, a user's name is a URL with a fragment.
func TestUserNamesAreWhole(t *testing.T) {
	const name = "https://login.example.com#anna"
	assert.Equal(t, name, v1alpha1.SanitizeUserName(name, 64))
	assert.NotEqual(t, name, v1alpha1.SanitizeText(name, 64))
	assert.Equal(t, "a b", v1alpha1.SanitizeUserName(" a\nb ", 64))
	assert.Equal(t, "https://…", v1alpha1.SanitizeUserName(name, 11))
}

func TestTruncate(t *testing.T) {
	assert.Equal(t, "short", v1alpha1.Truncate("short", 5))
	assert.Equal(t, "ab…", v1alpha1.Truncate("abcdef", 5))
	assert.Equal(t, "…", v1alpha1.Truncate("äöü", 4), "no half characters")
	assert.Equal(t, "ab", v1alpha1.Truncate("a\xffb", 5))
	assert.Empty(t, v1alpha1.Truncate("abcdef", 2))
}

func FuzzTruncate(f *testing.F) {
	f.Add("short", 5)
	f.Add("äöü", 4)
	f.Add("\xff\xff\xff", 2)
	f.Add(strings.Repeat("界", 1000), 512)
	for limit := range 40 {
		f.Add("x https://h:8443/p?… https://[fd00::1]:8443/p?a=b \"https://h/a b?c\": /p?d", limit)
	}
	f.Fuzz(func(t *testing.T, text string, limit int) {
		limit = min(max(limit, 0), 1<<16)
		for _, got := range []string{v1alpha1.Truncate(text, limit), v1alpha1.SanitizeText(text, limit)} {
			if len(got) > limit || !utf8.ValidString(got) {
				t.Fatalf("%d bytes instead of %d: %q", len(got), limit, got)
			}
		}
		once := v1alpha1.SanitizeText(text, limit)
		if strings.ContainsFunc(once, unicode.IsControl) {
			t.Fatalf("control characters of %q stay", text)
		}
		if twice := v1alpha1.SanitizeText(once, limit); twice != once {
			t.Fatalf("%q is sanitized to %q, and that to %q", text, once, twice)
		}
	})
}

// FuzzRedactURLs puts a secret where URLs have them, between whatever else a text has.
func FuzzRedactURLs(f *testing.F) {
	f.Add("https", "h:8443", "/p", "X-Amz-Signature=", `": dial tcp`)
	f.Add("docker", "quay.io", "/a@sha256:12", "", "]")
	f.Add("", "", "?", "\"'", "\\\"")
	f.Fuzz(func(t *testing.T, scheme, host, path, query, end string) {
		const secret = "S3CR3T"
		if strings.Contains(scheme+host+path+query+end, "S3C") || strings.ContainsAny(scheme+host+path, " \t\n\v\f\r") || strings.ContainsAny(query, " \t\n\v\f\r") {
			t.Skip()
		}
		text := fmt.Sprintf("Get %q %s", scheme+"://"+host+path+"?"+query+secret+end, end)
		once := v1alpha1.RedactURLs(text)
		if strings.Contains(once, secret) {
			t.Fatalf("the query of %s shows: %s", text, once)
		}
		if twice := v1alpha1.RedactURLs(once); twice != once {
			t.Fatalf("%q is redacted to %q, and that to %q", text, once, twice)
		}
		if strings.ContainsAny(host, "/?#@") {
			return
		}
		if got := v1alpha1.RedactURLs(fmt.Sprintf("Get %s://user:%s@%s%s", scheme, secret, host, path)); strings.Contains(got, secret) {
			t.Fatalf("the password shows: %s", got)
		}
	})
}
