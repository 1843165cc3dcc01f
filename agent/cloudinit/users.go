package cloudinit

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// user is one of cloud-init's module users_groups.
type user struct {
	Name  string `json:"name"`
	Gecos string `json:"gecos,omitempty"`
	// PlainTextPasswd and HashedPasswd, unlike passwd, are set for a user whom the
	// image already has, too.
	PlainTextPasswd   string   `json:"plain_text_passwd,omitempty"`
	HashedPasswd      string   `json:"hashed_passwd,omitempty"`
	LockPasswd        bool     `json:"lock_passwd"`
	SSHAuthorizedKeys []string `json:"ssh_authorized_keys,omitempty"`
	Sudo              string   `json:"sudo,omitempty"`
	Groups            string   `json:"groups,omitempty"`
	Shell             string   `json:"shell,omitempty"`
}

func renderUsers(specs []v1alpha1.User, passwords map[string]string) (users []user, adjusted []string, err error) {
	by := map[string]string{}
	for _, spec := range specs {
		u := user{
			Name: linuxUserName(spec.Name), Sudo: spec.Sudo, Groups: normalizeGroups(spec.Groups), Shell: spec.Shell,
			SSHAuthorizedKeys: trimKeys(spec.SSHAuthorizedKeys),
		}
		if other, taken := by[u.Name]; taken {
			return nil, nil, fmt.Errorf("users %q and %q would both be called %q in the guest: rename one", other, spec.Name, u.Name)
		}
		by[u.Name] = spec.Name
		if u.Name != spec.Name {
			u.Gecos = sanitizeGecos(spec.Name)
			adjusted = append(adjusted, fmt.Sprintf("user name %q is none that Linux takes: the user is called %q", spec.Name, u.Name))
		}
		if err := u.setPassword(spec, passwords); err != nil {
			return nil, nil, fmt.Errorf("user %q: the password %w", spec.Name, err)
		}
		u.LockPasswd = ptr.Deref(spec.LockPasswd, !hasPassword(spec))
		users = append(users, u)
	}
	return users, adjusted, nil
}

func hasPassword(spec v1alpha1.User) bool {
	return spec.PlainTextPasswd != "" || spec.PasswordSecretRef != nil
}

// allowSSHPassword lets people who have a password log in with it: cloud images forbid
// it. Else it is left as the image has it.
func allowSSHPassword(users []user) *bool {
	for _, u := range users {
		if (u.PlainTextPasswd != "" || u.HashedPasswd != "") && !u.LockPasswd {
			return ptr.To(true)
		}
	}
	return nil
}

func (u *user) setPassword(spec v1alpha1.User, passwords map[string]string) error {
	if spec.PasswordSecretRef == nil {
		u.PlainTextPasswd = spec.PlainTextPasswd
		return validatePassword(u.PlainTextPasswd)
	}
	// A line break ends what chpasswd reads; many a Secret is made with one.
	password := strings.TrimRight(passwords[spec.Name], "\r\n")
	if password == "" {
		return fmt.Errorf("that key %q of Secret %q holds is empty: put one there", spec.PasswordSecretRef.Key, spec.PasswordSecretRef.Name)
	}
	if cryptHash.MatchString(password) {
		u.HashedPasswd = password
	} else {
		u.PlainTextPasswd = password
	}
	return validatePassword(password)
}

func validatePassword(password string) error {
	switch {
	case !utf8.ValidString(password):
		return errNotUTF8
	case strings.ContainsAny(password, "\r\n\x00"):
		return errors.New("must be one line")
	default:
		return nil
	}
}

// cryptHash is what crypt(3) makes with the methods of libxcrypt that are in use;
// that of DES looks like any word.
var cryptHash = regexp.MustCompile(`^(\$1\$[^$:]{0,8}\$[./0-9A-Za-z]{22}` +
	`|\$2[abxy]\$[0-9]{2}\$[./0-9A-Za-z]{53}` +
	`|\$5\$(rounds=[0-9]+\$)?[^$:]{0,16}\$[./0-9A-Za-z]{43}` +
	`|\$6\$(rounds=[0-9]+\$)?[^$:]{0,16}\$[./0-9A-Za-z]{86}` +
	`|\$7\$[./0-9A-Za-z]{11}[^$:]*\$[./0-9A-Za-z]{43}` +
	`|\$g?y\$[./0-9A-Za-z]+\$[./0-9A-Za-z]{0,86}\$[./0-9A-Za-z]{43})$`)

const maxUserNameLength = 32

// linuxUserName makes a name that useradd takes of every distribution.
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

func isUserNameRune(r rune) bool { return isLabelRune(r) || r == '_' }

// sanitizeGecos is a field of /etc/passwd, where a colon ends it.
func sanitizeGecos(name string) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if r == ':' || unicode.IsControl(r) {
			return ' '
		}
		return r
	}, name))
}

func normalizeGroups(list string) string {
	var kept []string
	for g := range strings.SplitSeq(list, ",") {
		if g = strings.TrimSpace(g); g != "" {
			kept = append(kept, g)
		}
	}
	return strings.Join(kept, ",")
}

func trimKeys(list []string) []string {
	var kept []string
	for _, k := range list {
		if k = strings.TrimSpace(k); k != "" {
			kept = append(kept, k)
		}
	}
	return kept
}
