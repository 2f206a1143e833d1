package pod

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/node/runtime/fake"
	"github.com/coracle-dev/coracle/pkg/node/volume"
)

func TestEnvFileValue(t *testing.T) {
	long := strings.Repeat("x", 64<<10)
	for name, tt := range map[string]struct{ text, want, err string }{
		"plain":                   {"A='1'\nK='two words'\n", "two words", ""},
		"no newline at the end":   {"K='v'", "v", ""},
		"carriage returns":        {"A='1'\r\nK='v'\r\n", "v", ""},
		"comments and blanks":     {"# K='no'\n\n \t\n\tK='v' # a comment\n", "v", ""},
		"literal":                 {"K='$A \"b\" `c` \\n #d = e'", "$A \"b\" `c` \\n #d = e", ""},
		"several lines":           {"A='1\nK=2\n'\nK='one\n\n  three  '\n", "one\n\n  three  ", ""},
		"the first one":           {"K='v'\nK='w'\n", "v", ""},
		"nothing after it counts": {"K='v'\nthis is nothing", "v", ""},
		"names are whole":         {"KK='1'\nk='2'\nK='v'", "v", ""},
		"other letters":           {"K='日本 é'", "日本 é", ""},
		"missing":                 {"A='1'", "", ""},
		"empty file":              {"", "", ""},
		"empty":                   {"K=''\n", "", ""},
		"a space after the sign":  {"K= 'v'\nK='w'", "", ""},
		"no sign":                 {"A='1'\nexport K\nK='v'", "", "at line 2: missing '='"},
		"no name":                 {"='v'", "", "at line 1: empty variable name"},
		"a space before the sign": {"A='1\n2'\nK ='v'", "", "at line 3: whitespace before '=' is not allowed"},
		"no quotes":               {"K=v", "", "at line 1: value must be enclosed in single quotes"},
		"no value":                {"K=\n", "", "at line 1: value must be enclosed in single quotes"},
		"double quotes":           {`K="v"`, "", "value must be enclosed in single quotes"},
		"joined quotes":           {`K='v''w'`, "", "at line 1: unexpected content after closing quote"},
		"a command after it":      {"K='v'; reboot", "", "unexpected content after closing quote"},
		"open":                    {"A='1'\nK='v\n\n", "", "starting at line 2: unclosed single quote"},
		"a line that is too long": {"A='" + long + "'\nK='v'", "", "line 1 is longer than 65535 bytes"},
		"long ones in lines that fit": {
			"K='" + long[:60<<10] + "\n" + long[:60<<10] + "'", long[:60<<10] + "\n" + long[:60<<10], "",
		},
		"one too long, in a long value": {"K='a\n" + long + "'", "", "line 2 is longer than 65535 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := envFileValue(strings.NewReader(tt.text), "K")
			if tt.err != "" {
				require.ErrorContains(t, err, tt.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tt.want, got)
			if strings.Contains(tt.text, "\r") || strings.Contains(name, "nothing") || strings.Contains(name, "space") ||
				strings.Contains(name, "first") {
				return
			}
			file := filepath.Join(t.TempDir(), "env") // a shell reads the same value
			require.NoError(t, os.WriteFile(file, []byte(tt.text), 0o600))
			out, err := exec.Command("sh", "-c", `. "$0"; printf %s "$K"`, file).Output()
			require.NoError(t, err)
			require.Equal(t, got, string(out))
		})
	}
}

func FuzzEnvFileValue(f *testing.F) {
	for _, seed := range []string{"K='v'", "A='1'\nK='2\n3' # c", "K= 'v'", "K", "='", "'\n=K='"} {
		f.Add(seed, "K")
	}
	f.Fuzz(func(t *testing.T, text, key string) {
		value, err := envFileValue(strings.NewReader(text), key)
		if err == nil && value != "" && !strings.Contains(strings.ReplaceAll(text, "\r\n", "\n"), key+"='"+value+"'") {
			t.Errorf("%q has no %s='%s'", text, key, value)
		}
	})
}

// Files left by hostile containers are read only inside the volume and with a bound.
func TestEnvFilesOfHostileContainers(t *testing.T) {
	dir := t.TempDir()
	root := filepath.Join(dir, "volume")
	require.NoError(t, os.Mkdir(root, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "secret"), []byte("K='secret'"), 0o644))
	require.NoError(t, os.Symlink(filepath.Join(dir, "secret"), filepath.Join(root, "absolute")))
	require.NoError(t, os.Symlink("../secret", filepath.Join(root, "relative")))
	require.NoError(t, unix.Mkfifo(filepath.Join(root, "fifo"), 0o666))
	huge, err := os.Create(filepath.Join(root, "huge"))
	require.NoError(t, err)
	lines := strings.Repeat("# nothing\n", maxEnvFile/10+1)
	_, err = huge.WriteString(lines + "K='v'\n")
	require.NoError(t, err)
	require.NoError(t, huge.Truncate(1<<40))
	require.NoError(t, huge.Close())
	p := spec(corev1.RestartPolicyAlways, nil, []string{"a"})
	p.Spec.Volumes = []corev1.Volume{
		{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		{Name: "host", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: dir}}},
	}
	volumes := map[string]volume.Mounted{"data": {Path: root}, "host": {Path: dir}}
	read := func(name, path string) (string, bool, error) {
		return fromFile(p, volumes, &corev1.FileKeySelector{VolumeName: name, Path: path, Key: "K"})
	}
	for path, want := range map[string]error{
		"absolute": os.ErrNotExist,
		"relative": os.ErrNotExist,
		"fifo":     bounded.ErrNotRegular,
		".":        bounded.ErrNotRegular,
	} {
		_, _, err := read("data", path)
		require.ErrorIs(t, err, want, path)
		require.NotContains(t, err.Error(), dir, "nothing of the host's paths is told")
	}
	_, _, err = read("data", "huge")
	var large *bounded.TooLargeError
	require.ErrorAs(t, err, &large)
	_, _, err = read("host", "secret")
	require.ErrorContains(t, err, `cannot find the emptyDir volume "host" referenced by fileKeyRef`)
	_, _, err = read("none", "secret")
	require.Error(t, err)
}

// Variables are read from files of earlier containers. A missing one delays the container, unless it is optional.
func TestVariablesFromFiles(t *testing.T) {
	write := func(ctx context.Context, p *fake.Process) int {
		return map[bool]int{true: 0, false: 1}[os.WriteFile(filepath.Join(p.Spec.Mounts[0].Source, p.Args[1]),
			[]byte(p.Args[2]), 0o644) == nil]
	}
	with(t, fake.Config{Programs: map[string]fake.Program{"write": write}}, func(r *rig) {
		from := func(name, path, key string, optional bool) corev1.EnvVar {
			return corev1.EnvVar{
				Name: name,
				ValueFrom: &corev1.EnvVarSource{
					FileKeyRef: &corev1.FileKeySelector{VolumeName: "data", Path: path, Key: key, Optional: &optional},
				},
			}
		}
		writes := func(name, path, text string) corev1.Container {
			c := containerNamed(name, "write", path, text)
			c.VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
			return c
		}
		p := podOf("web", "env")
		p.Spec.RestartPolicy = corev1.RestartPolicyNever
		p.Spec.Volumes = []corev1.Volume{
			{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		}
		second := writes("second", "b.env", "B='from second: $(A)'")
		second.Env = []corev1.EnvVar{from("A", "a.env", "A", false)}
		second.Args = nil
		p.Spec.InitContainers = []corev1.Container{writes("first", "a.env", "# made\nA='from first'\nEMPTY=''\n"), second}
		main := &p.Spec.Containers[0] // mounts nothing
		main.Env = []corev1.EnvVar{
			from("A", "a.env", "A", false), from("RENAMED", "b.env", "B", false), {Name: "C", Value: "<$(A)>"},
			from("NONE", "a.env", "NONE", true), from("NO_FILE", "none/none.env", "A", true),
			from("EMPTY", "a.env", "EMPTY", true), from("LATE", "late.env", "LATE", false),
		}
		p = r.create(p)
		r.pass(5 * time.Second)
		s := r.status("web", "main")
		require.Equal(t, "waiting: CreateContainerConfigError", state(s))
		require.Equal(t, `couldn't read env file of volume "data": open late.env: no such file or directory`,
			s.State.Waiting.Message)
		file := filepath.Join(r.dir, "data", "pods", string(p.UID), "volumes", "data", "late.env")
		for text, message := range map[string]string{
			"LATE='x": `couldn't parse env file "late.env" of volume "data": invalid environment variable format starting at line 1: unclosed single quote`,
			"A='x'":   `environment variable key "LATE" not found in file "late.env" of volume "data"`,
		} {
			require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
			r.pass(11 * time.Second)
			require.Equal(t, message, r.status("web", "main").State.Waiting.Message)
		}
		require.Contains(t, r.events.text(), `Failed: Error: environment variable key "LATE" not found`)
		require.NoError(t, os.WriteFile(file, []byte("LATE='at last'"), 0o644))
		r.pass(11 * time.Second)
		require.Equal(t, corev1.PodSucceeded, r.pod("web").Status.Phase)
		out, err := os.ReadFile(LogPath(filepath.Join(r.dir, "log"), p, "main", 0))
		require.NoError(t, err)
		text := string(out)
		for _, want := range []string{
			"F A=from first\n", "F RENAMED=from second: from first\n", "F C=<from first>\n", "F LATE=at last\n",
		} {
			require.Contains(t, text, want)
		}
		for _, no := range []string{"NONE=", "NO_FILE=", "EMPTY="} {
			require.NotContains(t, text, no)
		}
	})
}

func TestLargeVariableFromAFile(t *testing.T) {
	for size, ok := range map[int]bool{maxString - 10: true, maxString: false} {
		lines := make([]string, 0, 4)
		for left := size; left > 0; left -= 1 << 15 {
			lines = append(lines, strings.Repeat("x", min(left, 1<<15)-1))
		}
		value, err := envFileValue(strings.NewReader(fmt.Sprintf("K='%s'", strings.Join(lines, "\n"))), "K")
		require.NoError(t, err)
		e := &environment{vars: map[string]string{}}
		require.Equal(t, ok, e.set("K", value) == nil)
	}
}
