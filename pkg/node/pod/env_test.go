package pod

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/node/volume"
)

func TestEnvironmentIsBounded(t *testing.T) {
	m := &Manager{c: Config{Services: func(context.Context, string) ([]*corev1.Service, error) { return nil, nil }}}
	doubling := []corev1.EnvVar{{Name: "V0", Value: strings.Repeat("x", 100)}}
	for i := range 64 {
		doubling = append(doubling, corev1.EnvVar{Name: fmt.Sprint("V", i+1), Value: fmt.Sprintf("$(V%d)$(V%d)", i, i)})
	}
	wide := []corev1.EnvVar{{Name: "V0", Value: strings.Repeat("x", 100_000)}}
	for i := range 100 {
		wide = append(wide, corev1.EnvVar{Name: fmt.Sprint("W", i), Value: "$(V0)"})
	}
	long := []corev1.EnvVar{
		{Name: "V0", Value: strings.Repeat("x", 100_000)}, {Name: "V1", Value: strings.Repeat("$(V0)", 200_000)},
	}
	for name, tt := range map[string]struct {
		env  []corev1.EnvVar
		args []string
		want string
	}{
		"doubling": {env: doubling, want: "environment variable V11: "},
		"wide":     {env: wide, want: "more than 6291456 bytes"},
		"long":     {env: long, want: "environment variable V1: "},
		"as it is": {
			env: []corev1.EnvVar{{Name: "V", Value: strings.Repeat("x", maxString-2)}}, want: "environment variable V is longer",
		},
		"just fits": {env: []corev1.EnvVar{{Name: "V", Value: strings.Repeat("x", maxString-3)}}},
		"same name": {env: func() (all []corev1.EnvVar) {
			for range 100 {
				all = append(all, corev1.EnvVar{Name: "V", Value: strings.Repeat("x", 100_000)})
			}
			return all
		}()},
		"one argument":  {env: wide[:1], args: []string{"$(V0)$(V0)"}, want: "bytes after variable expansion"},
		"all arguments": {env: wide[:1], args: slices.Repeat([]string{"$(V0)"}, 100), want: "more than 6291456 bytes"},
		"few arguments": {env: wide[:1], args: slices.Repeat([]string{"$(V0)"}, 10)},
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			e, err := m.environment(t.Context(), build{
				pod: spec(corev1.RestartPolicyAlways, nil, []string{"a"}), c: &corev1.Container{Env: tt.env},
			})
			if err == nil {
				_, err = e.expand(tt.args)
			}
			runtime.ReadMemStats(&after)
			require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(64<<20))
			if tt.want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, tt.want)
			}
		})
	}
}

// A reference that never ends is not searched for its end at each of its characters.
func TestExpandingTakesLinearTime(t *testing.T) {
	began := time.Now()
	_, err := Expand(strings.Repeat("$(", 700_000), nil)
	require.ErrorContains(t, err, "exceeds")
	require.Less(t, time.Since(began), 20*time.Second)
}

// large is an API whose config maps have 1 MB.
type large struct {
	client.Interface
	reads int
}

func (l *large) Get(_ context.Context, _ ctrl.ObjectKey, into ctrl.Object, _ ...ctrl.GetOption) error {
	l.reads++
	into.(*corev1.ConfigMap).Data = map[string]string{}
	for i := range 10 {
		into.(*corev1.ConfigMap).Data[fmt.Sprint("K", i)] = strings.Repeat("x", 100_000)
	}
	return nil
}

// If envFrom names an object of 1 MB thousands of times, the agent stops reading it after 64 MiB.
func TestEnvFromIsBounded(t *testing.T) {
	api := &large{}
	m := &Manager{
		c:       Config{Services: func(context.Context, string) ([]*corev1.Service, error) { return nil, nil }},
		volumes: volume.New(volume.Config{Client: api}),
	}
	from := corev1.EnvFromSource{ConfigMapRef: &corev1.ConfigMapEnvSource{}}
	for times, want := range map[int]string{10: "", 3000: "envFrom reads more than"} {
		api.reads = 0
		_, err := m.environment(t.Context(), build{
			pod: spec(corev1.RestartPolicyAlways, nil, []string{"a"}),
			c:   &corev1.Container{EnvFrom: slices.Repeat([]corev1.EnvFromSource{from}, times)},
		})
		if want == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, want)
		}
		require.Less(t, api.reads, 70)
	}
}

// Values that cannot be in a process's environment are refused.
func TestVariablesAreText(t *testing.T) {
	for value, want := range map[string]string{
		"é\n\t=":  "",
		"":        "",
		"a\x00b":  "environment variable V contains a NUL byte",
		"caf\xe9": "environment variable V is not valid UTF-8",
	} {
		e := &environment{vars: map[string]string{}}
		if err := e.set("V", value); want != "" {
			require.ErrorContains(t, err, want)
		} else {
			require.NoError(t, err)
			require.Equal(t, []string{"V=" + value}, e.list())
		}
	}
}
