package cloudinit_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/ptr"

	"github.com/pelotech/ot-fleet/agent/cloudinit"
	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func renderUser(t *testing.T, u v1alpha1.User, passwords map[string]string) (user map[string]any, cfg cloudinit.Config, err error) {
	cfg, err = cloudinit.Render(apitest.VirtualMachine("ns", "vm").WithUsers(u).Obj(), cloudinit.Inputs{Passwords: passwords})
	if err != nil {
		return nil, cfg, err
	}
	parsed := cloudConfig(t, cfg.UserData)
	require.Len(t, parsed.Users, 1)
	text, err := json.Marshal(parsed.Users[0])
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &user))
	return user, cfg, nil
}

func TestLinuxUserName(t *testing.T) {
	for _, tt := range []struct{ name, want, gecos string }{
		{"demo", "demo", ""},
		{"root", "root", ""},
		{"default", "default", ""}, // cloud-init's name for the user of the image
		{"_svc-1", "_svc-1", ""},
		{"demo user", "demo-user", "demo user"},
		{"Demo  User", "demo-user", "Demo  User"},
		{"1st", "_1st", "1st"},
		{"-a-", "a", "-a-"},
		{"a.b@example.com", "a-b-example-com", "a.b@example.com"},
		{"Jürgen", "j-rgen", "Jürgen"},
		{"日本", "user-cf2abf0c", "日本"},
		{"a:b\nc", "a-b-c", "a b c"},
		{strings.Repeat("a", 32), strings.Repeat("a", 32), ""},
		{strings.Repeat("a", 33), strings.Repeat("a", 23) + "-852785c8", strings.Repeat("a", 33)},
		{"1" + strings.Repeat("a", 31), "_1" + strings.Repeat("a", 21) + "-d081e719", "1" + strings.Repeat("a", 31)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			user, cfg, err := renderUser(t, v1alpha1.User{Name: tt.name}, nil)
			require.NoError(t, err)
			assert.Equal(t, tt.want, user["name"])
			if tt.name == tt.want {
				assert.NotContains(t, user, "gecos")
				assert.Empty(t, cfg.Adjusted)
				return
			}
			assert.Equal(t, tt.gecos, user["gecos"])
			require.Len(t, cfg.Adjusted, 1)
			assert.Contains(t, cfg.Adjusted[0], tt.want)
		})
	}
}

func TestDuplicateUserNamesAreRefused(t *testing.T) {
	_, err := cloudinit.Render(apitest.VirtualMachine("ns", "vm").WithUsers(v1alpha1.User{Name: "demo user"}, v1alpha1.User{Name: "demo-user"}).Obj(), cloudinit.Inputs{})
	require.EqualError(t, err, `users "demo user" and "demo-user" would both be named "demo-user" in the guest: rename one`)
}

func TestUserFields(t *testing.T) {
	user, _, err := renderUser(t, v1alpha1.User{
		Name: "a", Groups: " sudo,, docker ,", Shell: "/bin/zsh", Sudo: "ALL=(ALL) ALL", SSHAuthorizedKeys: []string{"ssh-ed25519 AAAA a@b\n", " "},
	}, nil)
	require.NoError(t, err)
	assert.Equal(t, map[string]any{
		"name": "a", "groups": "sudo,docker", "shell": "/bin/zsh", "sudo": "ALL=(ALL) ALL", "lock_passwd": true,
		"ssh_authorized_keys": []any{"ssh-ed25519 AAAA a@b"},
	}, user)
}

func TestPasswordRendering(t *testing.T) {
	ref := &v1alpha1.SecretKey{Name: "s", Key: "k"}
	sha512 := "$6$rounds=4096$salt$" + strings.Repeat("x", 86)
	for name, tt := range map[string]struct {
		user              v1alpha1.User
		inSecret          string
		wantKey, want     string
		wantLock, wantSSH bool
		wantErr           string
	}{
		"none":                  {wantLock: true},
		"none, unlocked":        {user: v1alpha1.User{LockPasswd: ptr.To(false)}},
		"in the spec":           {user: v1alpha1.User{PlainTextPasswd: "yes"}, wantKey: "plain_text_passwd", want: "yes", wantSSH: true},
		"in the spec, locked":   {user: v1alpha1.User{PlainTextPasswd: "no: \"x\" #", LockPasswd: ptr.To(true)}, wantKey: "plain_text_passwd", want: "no: \"x\" #", wantLock: true},
		"hash in the spec":      {user: v1alpha1.User{PlainTextPasswd: sha512}, wantKey: "plain_text_passwd", want: sha512, wantSSH: true},
		"in a Secret":           {user: v1alpha1.User{PasswordSecretRef: ref}, inSecret: "0123", wantKey: "plain_text_passwd", want: "0123", wantSSH: true},
		"in a Secret, locked":   {user: v1alpha1.User{PasswordSecretRef: ref, LockPasswd: ptr.To(true)}, inSecret: "x", wantKey: "plain_text_passwd", want: "x", wantLock: true},
		"with a line break":     {user: v1alpha1.User{PasswordSecretRef: ref}, inSecret: "word\r\n", wantKey: "plain_text_passwd", want: "word", wantSSH: true},
		"SHA-512":               {user: v1alpha1.User{PasswordSecretRef: ref}, inSecret: sha512 + "\n", wantKey: "hashed_passwd", want: sha512, wantSSH: true},
		"SHA-256":               {user: v1alpha1.User{PasswordSecretRef: ref}, inSecret: "$5$salt$" + strings.Repeat("x", 43), wantKey: "hashed_passwd", want: "$5$salt$" + strings.Repeat("x", 43), wantSSH: true},
		"bcrypt":                {user: v1alpha1.User{PasswordSecretRef: ref}, inSecret: "$2b$12$" + strings.Repeat("x", 53), wantKey: "hashed_passwd", want: "$2b$12$" + strings.Repeat("x", 53), wantSSH: true},
		"yescrypt":              {user: v1alpha1.User{PasswordSecretRef: ref}, inSecret: "$y$j9T$F5Jx5fExrKuPp53xLKQ..1$X3DX6M94c7o.9agCG9G317fhZg9SqC.5i5rd.RhAtQ7", wantKey: "hashed_passwd", want: "$y$j9T$F5Jx5fExrKuPp53xLKQ..1$X3DX6M94c7o.9agCG9G317fhZg9SqC.5i5rd.RhAtQ7", wantSSH: true},
		"MD5":                   {user: v1alpha1.User{PasswordSecretRef: ref}, inSecret: "$1$salt$" + strings.Repeat("x", 22), wantKey: "hashed_passwd", want: "$1$salt$" + strings.Repeat("x", 22), wantSSH: true},
		"resembles a hash":      {user: v1alpha1.User{PasswordSecretRef: ref}, inSecret: "$6$salt$short", wantKey: "plain_text_passwd", want: "$6$salt$short", wantSSH: true},
		"empty":                 {user: v1alpha1.User{PasswordSecretRef: ref}, inSecret: "\n", wantErr: `user "a": the password in key "k" of Secret "s" is empty: set one`},
		"two lines":             {user: v1alpha1.User{PasswordSecretRef: ref}, inSecret: "word\nroot:word", wantErr: `user "a": the password must be one line`},
		"two lines in the spec": {user: v1alpha1.User{PlainTextPasswd: "word\nroot:word"}, wantErr: `user "a": the password must be one line`},
		"not UTF-8":             {user: v1alpha1.User{PasswordSecretRef: ref}, inSecret: "\xff", wantErr: `user "a": the password is not UTF-8`},
	} {
		t.Run(name, func(t *testing.T) {
			tt.user.Name = "a"
			user, cfg, err := renderUser(t, tt.user, map[string]string{"a": tt.inSecret})
			if tt.wantErr != "" {
				require.EqualError(t, err, tt.wantErr)
				return
			}
			require.NoError(t, err)
			want := map[string]any{"name": "a", "lock_passwd": tt.wantLock}
			if tt.wantKey != "" {
				want[tt.wantKey] = tt.want
			}
			assert.Equal(t, want, user)
			assert.Equal(t, tt.wantSSH, ptr.Deref(cloudConfig(t, cfg.UserData).SSHPwauth, false))
		})
	}
}
