package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// KeyPreflightAllow lists the internal sources that the preflight asks.
const KeyPreflightAllow = "preflightAllow"

// Bounds of KeyPreflightAllow: it travels in each plan and report.
const (
	maxPreflightAllowEntries = 64
	maxPreflightAllowBytes   = 4096
	maxQuotedEntryLength     = 80
)

// PreflightAllow are the internal addresses that the preflight may connect to. An entry
// is a CIDR, the name of a host, or *.suffix for all subdomains of suffix; each in its
// canonical form, in the order of the ConfigMap, none twice.
type PreflightAllow []string

// String returns the list as a value of KeyPreflightAllow.
func (a PreflightAllow) String() string { return strings.Join(a, ",") }

// ContainsAddr reports whether a CIDR of the list contains an address.
func (a PreflightAllow) ContainsAddr(addr netip.Addr) bool {
	addr = addr.Unmap().WithZone("")
	return slices.ContainsFunc(a, func(entry string) bool {
		prefix, err := netip.ParsePrefix(entry)
		return err == nil && prefix.Contains(addr)
	})
}

// ContainsHost reports whether a name of the list matches a host.
func (a PreflightAllow) ContainsHost(host string) bool {
	host = normalizeHost(host)
	if _, err := netip.ParseAddr(host); err == nil {
		return false
	}
	return slices.ContainsFunc(a, func(entry string) bool { return matchesHost(entry, host) })
}

// parsePreflightAllow parses entries that are separated by commas or white space. The
// error names the first invalid entry.
func parsePreflightAllow(text string) (PreflightAllow, error) {
	if len(text) > maxPreflightAllowBytes {
		return nil, errPreflightAllowBytes(len(text))
	}
	var allow PreflightAllow
	for _, field := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' || r == '\t' || r == '\n' || r == '\r' }) {
		entry, err := parsePreflightAllowEntry(field)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(allow, entry) {
			allow = append(allow, entry)
		}
	}
	if len(allow) > maxPreflightAllowEntries {
		return nil, fmt.Errorf("it has %d entries: the maximum is %d", len(allow), maxPreflightAllowEntries)
	}
	if n := len(allow.String()); n > maxPreflightAllowBytes { // or it could not be read again
		return nil, errPreflightAllowBytes(n)
	}
	return allow, nil
}

func errPreflightAllowBytes(n int) error {
	return fmt.Errorf("it has %d bytes: the maximum is %d", n, maxPreflightAllowBytes)
}

func parsePreflightAllowEntry(entry string) (string, error) {
	quoted := fmt.Sprintf("%q", v1alpha1.Truncate(strings.ToValidUTF8(entry, "?"), maxQuotedEntryLength))
	if addr, err := netip.ParseAddr(entry); err == nil && addr.Zone() == "" {
		addr = addr.Unmap()
		return netip.PrefixFrom(addr, addr.BitLen()).String(), nil
	}
	if prefix, err := netip.ParsePrefix(entry); err == nil {
		switch masked := prefix.Masked(); {
		case prefix.Addr().Is4In6():
			return "", fmt.Errorf("%s is an IPv4 network written as IPv6: write it as IPv4", quoted)
		case masked != prefix:
			return "", fmt.Errorf("%s has bits beyond its prefix: write %s, or the address with /%d", quoted, masked, prefix.Addr().BitLen())
		default:
			return masked.String(), nil
		}
	}
	host := normalizeHost(entry)
	if len(validation.IsDNS1123Subdomain(strings.TrimPrefix(host, "*."))) > 0 || endsInNumber(host) {
		return "", fmt.Errorf("%s is neither a CIDR such as 10.20.0.0/16 nor a host such as images.example.com or *.example.com, without scheme, port and path", quoted)
	}
	return host, nil
}

// endsInNumber: what ends in a number is meant as an IPv4 address. No domain does.
func endsInNumber(host string) bool {
	last := host[strings.LastIndexByte(host, '.')+1:]
	return last != "" && strings.Trim(last, "0123456789") == ""
}
