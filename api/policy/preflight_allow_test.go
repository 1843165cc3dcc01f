package policy_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/policy"
)

// generatePreflightAllow draws a list as a policy has it.
func generatePreflightAllow() *rapid.Generator[policy.PreflightAllow] {
	entry := rapid.OneOf(
		rapid.StringMatching(`(\*\.)?[a-z]{1,8}(\.[a-z]{1,8}){0,3}`),
		rapid.Map(rapid.IntRange(0, 255), func(n int) string { return fmt.Sprintf("10.%d.0.0/16", n) }),
		rapid.Map(rapid.IntRange(0, 255), func(n int) string { return fmt.Sprintf("fd%02x::/16", n) }),
	)
	return rapid.Map(rapid.SliceOfNDistinct(entry, 0, 8, rapid.ID[string]), func(entries []string) policy.PreflightAllow {
		if len(entries) == 0 {
			return nil
		}
		return entries
	})
}

// parseAllow returns the list of a text, or the error of its key.
func parseAllow(text string) (policy.PreflightAllow, string) {
	p, _, errs := policy.Parse(map[string]string{policy.KeyPreflightAllow: text})
	if len(errs) > 0 {
		return nil, errs[0].Error()
	}
	return p.PreflightAllow, ""
}

func TestPreflightAllow(t *testing.T) {
	for name, tt := range map[string]struct {
		text    string
		want    policy.PreflightAllow
		wantErr string
	}{
		"nothing":              {text: " \n,"},
		"CIDRs and names":      {text: "10.0.0.0/8, fd00::/8\n*.example.com images.example.com", want: policy.PreflightAllow{"10.0.0.0/8", "fd00::/8", "*.example.com", "images.example.com"}},
		"addresses":            {text: "10.0.0.1,fd00::1,::ffff:10.0.0.2", want: policy.PreflightAllow{"10.0.0.1/32", "fd00::1/128", "10.0.0.2/32"}},
		"canonical, and once":  {text: "Images.Example.COM. images.example.com fd00:0::/8", want: policy.PreflightAllow{"images.example.com", "fd00::/8"}},
		"a short name":         {text: "registry", want: policy.PreflightAllow{"registry"}},
		"a prefix too long":    {text: "10.0.0.0/33", wantErr: `"10.0.0.0/33" is neither`},
		"bits beyond it":       {text: "10.1.2.3/8", wantErr: `"10.1.2.3/8" has bits beyond its prefix: write 10.0.0.0/8, or the address with /32`},
		"IPv4 in IPv6":         {text: "::ffff:10.0.0.0/104", wantErr: "write it as IPv4"},
		"a zone":               {text: "fe80::1%eth0", wantErr: "is neither"},
		"a number":             {text: "10.0.0", wantErr: `"10.0.0" is neither`},
		"a URL":                {text: "http://a.example.com/x", wantErr: "is neither"},
		"a port":               {text: "a.example.com:80", wantErr: "is neither"},
		"a mere star":          {text: "*", wantErr: "is neither"},
		"a star inside":        {text: "a.*.example.com", wantErr: "is neither"},
		"quotes":               {text: `"10.0.0.0/8"`, wantErr: "is neither"},
		"the second of two":    {text: "10.0.0.0/8;a", wantErr: `"10.0.0.0/8;a" is neither`},
		"not UTF-8":            {text: "\xff\xfe", wantErr: `"?" is neither`},
		"a long entry is cut":  {text: strings.Repeat("a", 3000), wantErr: strings.Repeat("a", 77) + `…"`},
		"too many":             {text: strings.Join(numberedHosts(65), ","), wantErr: "it has 65 entries: the maximum is 64"},
		"as many as there may": {text: strings.Join(numberedHosts(64), ","), want: numberedHosts(64)},
		"too long":             {text: strings.Repeat(" ", 5000) + "x", want: policy.PreflightAllow{"x"}}, // white space around a value is no part of it
		"too long inside":      {text: "x" + strings.Repeat(" ", 5000) + "x", wantErr: "it has 5002 bytes: the maximum is 4096"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseAllow(tt.text)
			assert.Equal(t, tt.want, got)
			if tt.wantErr == "" {
				assert.Empty(t, err)
			} else {
				assert.Contains(t, err, tt.wantErr)
				assert.True(t, strings.HasPrefix(err, "preflightAllow: "), err)
				assert.Less(t, len(err), 512)
			}
		})
	}
}

func numberedHosts(n int) (hosts policy.PreflightAllow) {
	for i := range n {
		hosts = append(hosts, fmt.Sprintf("h%d.example.com", i))
	}
	return hosts
}

func TestPreflightAllowMatches(t *testing.T) {
	allow := policy.PreflightAllow{"10.0.0.0/8", "fd00::/8", "images.example.com", "*.corp.example.com"}
	for text, want := range map[string]bool{
		"10.1.2.3": true, "::ffff:10.1.2.3": true, "11.0.0.1": false, "fd12::1": true, "fe80::1": false, "fd12::1%eth0": true,
	} {
		assert.Equal(t, want, allow.ContainsAddr(netip.MustParseAddr(text)), text)
	}
	for host, want := range map[string]bool{
		"images.example.com": true, "IMAGES.example.com.": true, "a.images.example.com": false,
		"a.corp.example.com": true, "a.b.corp.example.com": true, "corp.example.com": false, ".corp.example.com": false, "evilcorp.example.com": false,
		"10.1.2.3": false, "10.0.0.0/8": true /* no URL has such a host */, "": false,
	} {
		assert.Equal(t, want, allow.ContainsHost(host), host)
	}
	assert.False(t, policy.PreflightAllow(nil).ContainsHost("a.example.com"))
	assert.False(t, policy.PreflightAllow(nil).ContainsAddr(netip.MustParseAddr("10.0.0.1")))
}

// FuzzPreflightAllow: any text is either refused with a short sentence, or a bounded list
// that is the same when it is stored and read again.
func FuzzPreflightAllow(f *testing.F) {
	for _, seed := range []string{
		"", "10.0.0.0/8", "fd00::/8,*.example.com", "10.1.2.3/8", "::ffff:10.0.0.0/104", "fe80::1%eth0", "*", "a..b", "\xff", "0.0.0.0/0 ::/0",
		"1.2.3.4/032", "xn--bcher-kva.example", "10.0.0.1,10.0.0.1/32", "*.*.a", "-a", "a-", "_a", "[::1]", "\u2028a", "a\x00b", "::/0%x",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		allow, err := parseAllow(text)
		if err != "" {
			require.Less(t, len(err), 1024)
			require.NotContains(t, err, "\n")
			require.Nil(t, allow)
			return
		}
		require.LessOrEqual(t, len(allow), 64)
		require.LessOrEqual(t, len(allow.String()), 4096)
		again, err := parseAllow(allow.String())
		require.Empty(t, err)
		require.Equal(t, allow, again)
		for _, entry := range allow {
			prefix, err := netip.ParsePrefix(entry)
			if err == nil {
				require.True(t, allow.ContainsAddr(prefix.Addr()))
				continue
			}
			require.True(t, allow.ContainsHost(strings.Replace(entry, "*", "x", 1)), entry)
		}
	})
}
