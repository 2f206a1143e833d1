package images

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
	"github.com/coracle-dev/coracle/pkg/node/runtime/fake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestPolicies(t *testing.T) {
	pulls := 0
	m := New(fake.New(fake.Config{Images: []string{"docker.io/library/have:1"}, Pull: func(context.Context, string) error {
		pulls++
		return nil
	}}).Images(), "")
	for _, tt := range []struct {
		ref    string
		policy corev1.PullPolicy
		pulls  int
		reason string
	}{
		{"have:1", corev1.PullIfNotPresent, 0, ""},
		{"have:1", corev1.PullNever, 0, ""},
		{"have:1", corev1.PullAlways, 1, ""},
		{"absent:1", corev1.PullNever, 0, "ErrImageNeverPull"},
		{"absent:1", corev1.PullIfNotPresent, 1, ""},
		{"Upper:1", corev1.PullAlways, 0, "InvalidImageName"},
	} {
		pulls = 0
		_, err := m.Ensure(t.Context(), Request{Ref: tt.ref, Policy: tt.policy})
		var e *Error
		if tt.reason == "" {
			require.NoError(t, err, tt.ref)
		} else {
			require.ErrorAs(t, err, &e, tt.ref)
			require.Equal(t, tt.reason, e.Reason)
		}
		require.Equal(t, tt.pulls, pulls, "%s %s", tt.ref, tt.policy)
	}
}

func TestBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pulls, away := 0, true
		m := New(fake.New(fake.Config{Images: []string{}, Pull: func(context.Context, string) error {
			pulls++
			if away {
				return errors.New("away")
			}
			return nil
		}}).Images(), "")
		try := func() *Error {
			_, err := m.Ensure(t.Context(), Request{Ref: "x:1"})
			var e *Error
			errors.As(err, &e)
			return e
		}
		for _, wait := range []time.Duration{10, 20, 40, 80, 160, 300, 300} {
			e := try()
			require.Equal(t, "ErrImagePull", e.Reason)
			require.Equal(t, time.Now().Add(wait*time.Second), e.Until)
			e = try()
			require.Equal(t, "ImagePullBackOff", e.Reason)
			time.Sleep(time.Until(e.Until))
		}
		require.Equal(t, 7, pulls)
		away = false
		require.Nil(t, try())
	})
}

// The message about an image that cannot be pulled names other nodes that have it, also while the pull backs off.
func TestImageOnAnotherNode(t *testing.T) {
	m := New(fake.New(fake.Config{Images: []string{}, Pull: func(context.Context, string) error {
		return errors.New("no route to host")
	}}).Images(), "")
	m.Elsewhere = func(ref string) []string {
		if ref == "docker.io/library/shop:1" {
			return []string{"a", "b", "c", "d"}
		}
		return nil
	}
	message := func(ref string, policy corev1.PullPolicy) string {
		_, err := m.Ensure(t.Context(), Request{Ref: ref, Policy: policy})
		return err.Error()
	}
	const want = `. It is on node a, b, c and 1 more: "coracle image load" loads an image on one machine only`
	require.Contains(t, message("shop:1", corev1.PullNever), want)
	require.Contains(t, message("shop:1", corev1.PullIfNotPresent), "no route to host"+want)
	back := message("shop:1", corev1.PullIfNotPresent)
	require.Contains(t, back, "Back-off")
	require.Contains(t, back, want)
	require.NotContains(t, message("shop:2", corev1.PullIfNotPresent), "It is on")
}

// The message about an image that cannot be pulled names the image that was loaded into the node.
func TestImageWithAnotherTag(t *testing.T) {
	denied := func(context.Context, string) error { return errors.New("denied") }
	loaded := fake.New(fake.Config{
		Images: []string{"docker.io/library/shop:1", "docker.io/library/web:latest", "docker.io/library/tea:latest",
			"docker.io/library/tea:1"}, Pull: denied,
	})
	m := New(pinned{loaded.Images()}, "")
	message := func(m *Manager, ref string) string {
		_, err := m.Ensure(t.Context(), Request{Ref: ref})
		return err.Error()
	}
	require.Contains(t, message(m, "shop"), "denied. This node has shop:1: name that tag")
	require.Contains(t, message(m, "tea:2"), "denied. This node has tea:1: name that tag")
	require.Contains(t, message(m, "web:2"), "name that tag, with imagePullPolicy: IfNotPresent")
	require.Contains(t, message(m, "web"), "set imagePullPolicy: IfNotPresent")
	require.NotContains(t, message(m, "other"), "This node")
	require.NotContains(t, message(New(loaded.Images(), ""), "shop"), "This node", "the image may need credentials")
}

// An image that is loaded while a pull of it fails is used by the next attempt, and the message does not blame the
// pull policy.
func TestLoadedWhileAPullFails(t *testing.T) {
	var rt *fake.Runtime
	rt = fake.New(fake.Config{Images: []string{}, Pull: func(ctx context.Context, ref string) error {
		_, err := rt.Images().Load(ctx, strings.NewReader(ref))
		return errors.Join(err, errors.New("denied"))
	}})
	m := New(pinned{rt.Images()}, "")
	_, err := m.Ensure(t.Context(), Request{Ref: "shop:1"})
	require.ErrorContains(t, err, "denied. The image was loaded into this node meanwhile: the next attempt uses it")
}

// No registry has the images of the examples.
func TestImagesOfExamples(t *testing.T) {
	m := New(fake.New(fake.Config{
		Images: []string{}, Pull: func(context.Context, string) error { return errors.New("denied") },
	}).Images(), "")
	_, err := m.Ensure(t.Context(), Request{Ref: "coracle/hello"})
	require.ErrorContains(t, err, "coracle image load dist/images/*.tar")
}

// pinned are images that were loaded from a file.
type pinned struct{ runtime.Images }

func (p pinned) List(ctx context.Context) ([]runtime.Image, error) {
	all, err := p.Images.List(ctx)
	for i := range all {
		all[i].Pinned = true
	}
	return all, err
}

// A failing pull of one namespace does not delay pulls of another.
func TestBackOffOfAnotherNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		away := true
		m := New(fake.New(fake.Config{Images: []string{}, Pull: func(context.Context, string) error {
			if away {
				return errors.New("denied")
			}
			return nil
		}}).Images(), "")
		request := Request{Ref: "x:1", Namespace: "stranger", Policy: corev1.PullAlways}
		_, err := m.Ensure(t.Context(), request)
		require.ErrorContains(t, err, "denied")
		away = false
		_, err = m.Ensure(t.Context(), Request{Ref: "x:1", Namespace: "owner"})
		require.NoError(t, err)
		var e *Error
		_, err = m.Ensure(t.Context(), request)
		require.ErrorAs(t, err, &e)
		require.Equal(t, "ImagePullBackOff", e.Reason)
	})
}

func TestOnePullForMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var pulls atomic.Int32
		m := New(fake.New(fake.Config{Images: []string{}, Pull: func(ctx context.Context, _ string) error {
			pulls.Add(1)
			select {
			case <-time.After(time.Second):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}}).Images(), "")
		first, giveUp := context.WithCancel(t.Context())
		errs := make(chan error, 5)
		go func() { _, err := m.Ensure(first, Request{Ref: "x:1"}); errs <- err }()
		synctest.Wait()
		for range 4 {
			go func() { _, err := m.Ensure(t.Context(), Request{Ref: "x:1"}); errs <- err }()
		}
		synctest.Wait()
		require.EqualValues(t, 1, pulls.Load())
		giveUp() // the leading request is cancelled; another takes over
		require.ErrorIs(t, <-errs, context.Canceled)
		for range 4 {
			require.NoError(t, <-errs)
		}
		require.EqualValues(t, 2, pulls.Load())
	})
}

func TestCollectTakesTheLongestUnused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := fake.New(fake.Config{
			Images: []string{"docker.io/library/a:1", "docker.io/library/b:1", "docker.io/library/used:1"},
		})
		m := New(rt.Images(), "")
		for _, ref := range []string{"a:1", "b:1", "used:1"} {
			_, err := m.Ensure(t.Context(), Request{Ref: ref})
			require.NoError(t, err)
			time.Sleep(time.Hour)
		}
		used, err := rt.Images().Get(t.Context(), "used:1")
		require.NoError(t, err)
		_, err = m.Collect(t.Context(), map[string]bool{used.ID: true}, 1)
		require.NoError(t, err)
		_, err = rt.Images().Get(t.Context(), "a:1")
		require.Error(t, err)
		_, err = rt.Images().Get(t.Context(), "used:1")
		require.NoError(t, err)
	})
}

func TestCollectLeavesWhatJustCame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := fake.New(fake.Config{Images: []string{"docker.io/library/loaded:1"}})
		m := New(rt.Images(), "")
		time.Sleep(time.Minute)
		freed, err := m.Collect(t.Context(), nil, math.MaxInt64)
		require.NoError(t, err)
		require.Zero(t, freed, "nobody had the time to use it")
		time.Sleep(time.Minute)
		freed, err = m.Collect(t.Context(), nil, math.MaxInt64)
		require.NoError(t, err)
		require.Positive(t, freed)
	})
}

func TestCollectLeavesWhatWasLoaded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := fake.New(fake.Config{})
		_, err := rt.Images().Load(t.Context(), strings.NewReader("docker.io/library/loaded:1"))
		require.NoError(t, err)
		time.Sleep(time.Hour)
		_, err = New(rt.Images(), "").Collect(t.Context(), nil, math.MaxInt64)
		require.NoError(t, err)
		_, err = rt.Images().Get(t.Context(), "docker.io/library/loaded:1")
		require.NoError(t, err)
	})
}

func TestExcess(t *testing.T) {
	for _, c := range []struct {
		available, capacity int64
		high, low           int
		want                int64
	}{
		{500, 1000, 85, 80, 0}, {160, 1000, 85, 80, 0}, {150, 1000, 85, 80, 50}, {10, 1000, 85, 80, 190},
		{0, 1000, 100, 80, 0}, {0, 0, 85, 80, 0}, {10, 1000, 99, 0, 990},
	} {
		require.Equal(t, c.want, Excess(c.available, c.capacity, c.high, c.low), c)
	}
}
