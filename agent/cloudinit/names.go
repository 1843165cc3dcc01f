package cloudinit

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

const (
	maxLabelLength    = 63
	maxUserNameLength = 32
	hashLength        = 8
)

// guestHostname returns the host name of the guest, one DNS label as KubeVirt requires, and
// a sentence where it differs from the spec.
func guestHostname(vm *v1alpha1.VirtualMachine) (hostname string, adjusted []string) {
	field, wanted := "spec.name", vm.Spec.Name
	if wanted == "" {
		field, wanted = "metadata.name", vm.Name
	}
	name := strings.Trim(sanitizeName(wanted, isLabelRune), "-")
	if name == "" {
		name = "vm-" + shortHash(wanted)
	}
	if len(name) > maxLabelLength {
		name = strings.TrimRight(name[:maxLabelLength-1-hashLength], "-") + "-" + shortHash(wanted)
	}
	if name == wanted {
		return name, nil
	}
	return name, []string{fmt.Sprintf("%s %q is not a host name of one label: the guest's host name is %q", field, wanted, name)}
}

// linuxUserName returns a name that useradd of every distribution accepts.
func linuxUserName(wanted string) string {
	name := strings.Trim(sanitizeName(wanted, isUserNameRune), "-")
	switch {
	case name == "":
		name = "user-" + shortHash(wanted)
	case '0' <= name[0] && name[0] <= '9':
		name = "_" + name
	}
	if len(name) > maxUserNameLength {
		name = strings.TrimRight(name[:maxUserNameLength-1-hashLength], "-") + "-" + shortHash(wanted)
	}
	return name
}

// sanitizeName lowers ASCII letters and replaces each run of runes that are not allowed by
// one dash.
func sanitizeName(s string, allowed func(rune) bool) string {
	var b strings.Builder
	inDash := false
	for _, r := range s {
		if 'A' <= r && r <= 'Z' {
			r += 'a' - 'A'
		}
		switch {
		case allowed(r):
			b.WriteRune(r)
			inDash = false
		case !inDash:
			b.WriteByte('-')
			inDash = true
		}
	}
	return b.String()
}

func isLabelRune(r rune) bool {
	return 'a' <= r && r <= 'z' || '0' <= r && r <= '9' || r == '-'
}

func isUserNameRune(r rune) bool { return isLabelRune(r) || r == '_' }

func shortHash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])[:hashLength]
}
