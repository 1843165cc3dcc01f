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

// user is a user of cloud-init's module users_groups.
type user struct {
	Name  string `json:"name"`
	Gecos string `json:"gecos,omitempty"`
	// PlainTextPasswd and HashedPasswd, unlike passwd, also apply to a user that the image
	// already has.
	PlainTextPasswd   string   `json:"plain_text_passwd,omitempty"`
	HashedPasswd      string   `json:"hashed_passwd,omitempty"`
	LockPasswd        bool     `json:"lock_passwd"`
	SSHAuthorizedKeys []string `json:"ssh_authorized_keys,omitempty"`
	Sudo              string   `json:"sudo,omitempty"`
	Groups            string   `json:"groups,omitempty"`
	Shell             string   `json:"shell,omitempty"`
}

func renderUsers(specs []v1alpha1.User, passwords map[string]string) (users []user, adjusted []string, err error) {
	specNames := map[string]string{} // by the name in the guest
	for _, spec := range specs {
		u := user{
			Name: linuxUserName(spec.Name), Sudo: spec.Sudo, Groups: normalizeGroups(spec.Groups), Shell: spec.Shell,
			SSHAuthorizedKeys: trimKeys(spec.SSHAuthorizedKeys),
		}
		if other, taken := specNames[u.Name]; taken {
			return nil, nil, fmt.Errorf("users %q and %q would both be named %q in the guest: rename one", other, spec.Name, u.Name)
		}
		specNames[u.Name] = spec.Name
		if u.Name != spec.Name {
			u.Gecos = sanitizeGecos(spec.Name)
			adjusted = append(adjusted, fmt.Sprintf("user name %q is not valid on Linux: the user's name is %q", spec.Name, u.Name))
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

// allowSSHPassword returns true where a user can log in with a password, since cloud images
// forbid that over SSH; else nil, which keeps the setting of the image.
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
	// Secrets made from files often end in a line break, which chpasswd cannot take.
	password := strings.TrimRight(passwords[spec.Name], "\r\n")
	if password == "" {
		return fmt.Errorf("in key %q of Secret %q is empty: set one", spec.PasswordSecretRef.Key, spec.PasswordSecretRef.Name)
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

// cryptHash matches hashes of crypt(3) by the methods of libxcrypt that are in use. DES is
// not among them: its hashes look like any word.
var cryptHash = regexp.MustCompile(`^(\$1\$[^$:]{0,8}\$[./0-9A-Za-z]{22}` +
	`|\$2[abxy]\$[0-9]{2}\$[./0-9A-Za-z]{53}` +
	`|\$5\$(rounds=[0-9]+\$)?[^$:]{0,16}\$[./0-9A-Za-z]{43}` +
	`|\$6\$(rounds=[0-9]+\$)?[^$:]{0,16}\$[./0-9A-Za-z]{86}` +
	`|\$7\$[./0-9A-Za-z]{11}[^$:]*\$[./0-9A-Za-z]{43}` +
	`|\$g?y\$[./0-9A-Za-z]+\$[./0-9A-Za-z]{0,86}\$[./0-9A-Za-z]{43})$`)

// sanitizeGecos returns a value for the gecos field of /etc/passwd, which a colon would end.
func sanitizeGecos(name string) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if r == ':' || unicode.IsControl(r) {
			return ' '
		}
		return r
	}, name))
}

// normalizeGroups removes spaces and empty names from a comma-separated list.
func normalizeGroups(list string) string {
	var groups []string
	for g := range strings.SplitSeq(list, ",") {
		if g = strings.TrimSpace(g); g != "" {
			groups = append(groups, g)
		}
	}
	return strings.Join(groups, ",")
}

// trimKeys removes surrounding space and empty keys.
func trimKeys(list []string) []string {
	var keys []string
	for _, k := range list {
		if k = strings.TrimSpace(k); k != "" {
			keys = append(keys, k)
		}
	}
	return keys
}
