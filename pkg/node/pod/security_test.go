package pod

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

func TestSecurityThatIsNotSupported(t *testing.T) {
	unmasked, no, yes := corev1.UnmaskedProcMount, false, true
	tests := map[string]struct {
		pod       corev1.PodSecurityContext
		container corev1.SecurityContext
		hostUsers *bool
		modules   modules
		want      string
	}{
		"nothing":          {},
		"the host's users": {hostUsers: &yes},
		"own users":        {hostUsers: &no, container: corev1.SecurityContext{RunAsUser: new(int64(65535))}},
		"a user beyond them": {
			hostUsers: &no, container: corev1.SecurityContext{RunAsUser: new(int64(65536))},
			want: "user or group 65536 is not in the pod's user namespace (hostUsers: false)",
		},
		"a group beyond them": {
			hostUsers: &no, pod: corev1.PodSecurityContext{FSGroup: new(int64(1 << 30))},
			want: "user or group 1073741824 is not in",
		},
		"all of /proc":           {container: corev1.SecurityContext{ProcMount: &unmasked}, want: "procMount Unmasked"},
		"all of their own /proc": {hostUsers: &no, container: corev1.SecurityContext{ProcMount: &unmasked}},
		"windows": {
			pod: corev1.PodSecurityContext{WindowsOptions: &corev1.WindowsSecurityContextOptions{}}, want: "windowsOptions",
		},
		"a container for windows": {
			container: corev1.SecurityContext{WindowsOptions: &corev1.WindowsSecurityContextOptions{}}, want: "windowsOptions",
		},
		"labels": {
			pod: corev1.PodSecurityContext{SELinuxOptions: &corev1.SELinuxOptions{}}, modules: modules{seLinux: true},
			want: "seLinuxOptions",
		},
		"labels, but no SELinux": {container: corev1.SecurityContext{SELinuxOptions: &corev1.SELinuxOptions{}}},
		"a profile not known": {
			container: corev1.SecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: "Other"}}, want: "not supported",
		},
		"no profile named": {
			container: corev1.SecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: "Localhost"}},
			want:      "localhostProfile must be set",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			m := &Manager{modules: tt.modules}
			p := spec(corev1.RestartPolicyAlways, nil, []string{"a"})
			p.Spec.SecurityContext, p.Spec.Containers[0].SecurityContext, p.Spec.HostUsers = &tt.pod, &tt.container, tt.hostUsers
			s := &runtime.Spec{}
			if ownUsers(p) {
				s.Users = &runtime.Users{First: 131072, Count: 65536}
			}
			err := m.security(s, p, &p.Spec.Containers[0], runtime.Image{})
			if tt.want == "" {
				require.NoError(t, err)
				require.Equal(t, tt.container.ProcMount != nil, s.UnmaskedProc)
				return
			}
			require.ErrorContains(t, err, tt.want)
		})
	}
}

func TestLocalSeccompProfile(t *testing.T) {
	top := t.TempDir()
	dir := filepath.Join(top, "seccomp")
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "profiles"), 0o700))
	secret := filepath.Join(top, "secret.json")
	for path, text := range map[string]string{
		filepath.Join(dir, "audit.json"):         "{}",
		filepath.Join(dir, "profiles/fine.json"): "{}",
		secret:                                   "{}",
	} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "huge.json"), nil, 0o600))
	require.NoError(t, os.Truncate(filepath.Join(dir, "huge.json"), 1<<40))
	require.NoError(t, os.Symlink("profiles/fine.json", filepath.Join(dir, "inside.json")))
	require.NoError(t, os.Symlink("../secret.json", filepath.Join(dir, "out.json")))
	require.NoError(t, os.Symlink(secret, filepath.Join(dir, "abs.json")))
	require.NoError(t, os.Symlink("..", filepath.Join(dir, "up")))
	t.Chdir(dir) // the working directory must not matter

	m := &Manager{c: Config{
		Environment: Environment{
			SeccompDir: dir,
		},
	}}
	local := func(name string) (string, error) {
		return m.seccomp(&corev1.SeccompProfile{Type: corev1.SeccompProfileTypeLocalhost, LocalhostProfile: &name}, false)
	}
	for name, want := range map[string]string{
		"audit.json": "audit.json", "profiles/fine.json": "profiles/fine.json", "inside.json": "profiles/fine.json",
		"profiles/../audit.json": "audit.json",
	} {
		got, err := local(name)
		require.NoError(t, err, name)
		require.Equal(t, filepath.Join(dir, want), got)
	}
	for _, name := range []string{
		"", "none.json", "../secret.json", secret, "out.json", "abs.json", "up/secret.json", "profiles", "huge.json",
	} {
		_, err := local(name)
		require.Error(t, err, name)
	}
	name := "audit.json"
	m.c.SeccompDir = filepath.Join(dir, "none")
	_, err := local(name)
	require.ErrorIs(t, err, os.ErrNotExist)
	got, err := m.seccomp(&corev1.SeccompProfile{Type: corev1.SeccompProfileTypeLocalhost, LocalhostProfile: &name}, true)
	require.NoError(t, err)
	require.Equal(t, "unconfined", got, "as upstream: a privileged container has none")
}
