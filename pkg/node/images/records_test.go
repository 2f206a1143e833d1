package images

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/pkg/node/images/keyring"
	"github.com/coracle-dev/coracle/pkg/node/runtime"
	"github.com/coracle-dev/coracle/pkg/node/runtime/fake"
)

// private is a registry that requires a password.
type private struct {
	runtime.Images
	mu       sync.Mutex
	password string // empty allows everyone
	pulls    int
}

func (p *private) Pull(ctx context.Context, ref string, auths []runtime.Auth,
	observe runtime.PullObserver) (runtime.Image, error) {
	p.mu.Lock()
	p.pulls++
	denied := p.password != "" && (len(auths) != 1 || auths[0].Password != p.password)
	p.mu.Unlock()
	if denied {
		return runtime.Image{}, errors.New("denied")
	}
	return p.Images.Pull(ctx, ref, auths, observe)
}

func login(secret, password string) func() []keyring.Credential {
	return func() []keyring.Credential {
		return []keyring.Credential{{
			Auth:   runtime.Auth{Username: "me", Password: password},
			Secret: keyring.Secret{UID: secret, Namespace: "ns", Name: secret, Hash: keyring.Sum(password)},
		}}
	}
}

// plugged returns a plugin's credentials for a service account; "" means the node.
func plugged(account, password string) func() []keyring.Credential {
	return func() []keyring.Credential {
		c := keyring.Credential{Auth: runtime.Auth{Username: "me", Password: password}}
		if account != "" {
			c.Account = keyring.Account{UID: account, Namespace: "ns", Name: account}
		}
		return []keyring.Credential{c}
	}
}

func TestAnImageOnTheNodeIsForWhoMayPullIt(t *testing.T) {
	dir := t.TempDir()
	rt := fake.New(fake.Config{Images: []string{"docker.io/library/preloaded:1"}})
	registry := &private{Images: rt.Images(), password: "right"}
	manager := func() *Manager {
		m := New(registry, dir)
		require.NoError(t, m.Start(t.Context()))
		return m
	}
	m := manager()
	try := func(ref string, policy corev1.PullPolicy, credentials func() []keyring.Credential) (string, int) {
		registry.pulls = 0
		_, err := m.Ensure(t.Context(), Request{Ref: ref, Policy: policy, Credentials: credentials})
		m.back = map[string]backOff{}
		var e *Error
		if errors.As(err, &e) {
			return e.Reason, registry.pulls
		}
		require.NoError(t, err)
		return "", registry.pulls
	}
	for restart := range 2 {
		for _, c := range []struct {
			what        string
			ref         string
			policy      corev1.PullPolicy
			credentials func() []keyring.Credential
			reason      string
			pulls       int
		}{
			{
				"the first with the password pulls", "x.io/private:1", corev1.PullIfNotPresent, login("a", "right"), "",
				1 - restart,
			},
			{"again, it is known", "x.io/private:1", corev1.PullIfNotPresent, login("a", "right"), "", 0},
			{"and Never finds it", "x.io/private:1", corev1.PullNever, login("a", "right"), "", 0},
			{"nothing to show", "x.io/private:1", corev1.PullIfNotPresent, nil, "ErrImagePull", 1},
			{"nothing to show, and no pull", "x.io/private:1", corev1.PullNever, nil, "ErrImageNeverPull", 0},
			{
				"a wrong password, and then none", "x.io/private:1", corev1.PullIfNotPresent, login("b", "wrong"), "ErrImagePull",
				2,
			},
			{"the same password in another secret", "x.io/private:1", corev1.PullNever, login("c", "right"), "", 0},
			{"who could use it once can after a rotation", "x.io/private:1", corev1.PullNever, login("c", "rotated"), "", 0},
			{"a service account pulls", "x.io/account:1", corev1.PullIfNotPresent, plugged("a", "right"), "", 1 - restart},
			{
				"and needs not pull again, whatever it is given now", "x.io/account:1", corev1.PullNever, plugged("a", "other"), "",
				0,
			},
			{"another one has to", "x.io/account:1", corev1.PullNever, plugged("b", "right"), "ErrImageNeverPull", 0},
			{
				"a secret does not stand for an account", "x.io/account:1", corev1.PullNever, login("a", "right"),
				"ErrImageNeverPull", 0,
			},
			{"nor an account for a secret", "x.io/private:1", corev1.PullNever, plugged("a", "right"), "ErrImageNeverPull", 0},
			{
				"the node's credentials are for all", "x.io/node:1", corev1.PullIfNotPresent, plugged("", "right"), "", 1 - restart,
			},
			{"for a pod without any", "x.io/node:1", corev1.PullNever, nil, "", 0},
			{"what was there before is for all", "preloaded:1", corev1.PullNever, nil, "", 0},
		} {
			reason, pulls := try(c.ref, c.policy, c.credentials)
			require.Equal(t, c.reason, reason, c.what)
			require.Equal(t, c.pulls, pulls, c.what)
		}
		m = manager()
	}
	registry.password = ""
	reason, _ := try("x.io/public:1", corev1.PullIfNotPresent, login("a", "any"))
	require.Empty(t, reason)
	reason, pulls := try("x.io/public:1", corev1.PullIfNotPresent, nil)
	require.Empty(t, reason)
	require.Equal(t, 1, pulls, "it was pulled with a credential; that none is needed shows now")
	reason, pulls = try("x.io/public:1", corev1.PullNever, nil)
	require.Empty(t, reason)
	require.Zero(t, pulls)
}

func TestRecordsGoWithTheirImages(t *testing.T) {
	dir := t.TempDir()
	rt := fake.New(fake.Config{})
	m := New(rt.Images(), dir)
	require.NoError(t, m.Start(t.Context()))
	img, err := m.Ensure(t.Context(), Request{Ref: "x.io/a:1", Credentials: login("a", "p")})
	require.NoError(t, err)
	files := func() []string {
		names, err := filepath.Glob(filepath.Join(dir, "*"))
		require.NoError(t, err)
		return names
	}
	require.Len(t, files(), 1, "the record, and no pull that goes on")
	info, err := os.Stat(files()[0])
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())
	require.NoError(t, rt.Images().Remove(t.Context(), img.ID))
	_, err = m.Collect(t.Context(), nil, 0)
	require.NoError(t, err)
	require.Empty(t, files())
}

// unpacking is a runtime that shows a pulled image while it is still unpacking it, and fails if broken is set.
type unpacking struct {
	runtime.Images
	shown  func(runtime.Image)
	broken error
}

func (u *unpacking) Pull(ctx context.Context, ref string, auths []runtime.Auth,
	observe runtime.PullObserver) (runtime.Image, error) {
	img, err := u.Images.Pull(ctx, ref, auths, observe)
	if err != nil {
		return img, err
	}
	u.shown(img)
	return img, u.broken
}

// A private image is for no other pod, by no name, while it is unpacked, if that fails, and if the process is killed.
func TestAnImageIsPrivateBeforeItsPullEnds(t *testing.T) {
	for _, broken := range []error{nil, errors.New("no space")} {
		dir := t.TempDir()
		rt := fake.New(fake.Config{})
		hidden := func(m *Manager, img runtime.Image) {
			for _, ref := range append([]string{"x.io/a:1", img.ID}, img.Digests...) {
				_, err := rt.Images().Get(t.Context(), ref)
				require.NoError(t, err)
				_, err = m.Ensure(t.Context(), Request{Ref: ref, Policy: corev1.PullNever})
				var e *Error
				require.ErrorAs(t, err, &e, ref)
				require.Equal(t, "ErrImageNeverPull", e.Reason)
			}
		}
		var m *Manager
		var seen runtime.Image
		m = New(&unpacking{Images: rt.Images(), broken: broken, shown: func(img runtime.Image) {
			seen = img
			hidden(m, img)
			killed := New(rt.Images(), dir) // a process that starts after this one was killed here
			require.NoError(t, killed.Start(t.Context()))
			hidden(killed, img)
			_, err := m.Collect(t.Context(), nil, 0)
			require.NoError(t, err)
		}}, dir)
		require.NoError(t, m.Start(t.Context()))
		_, err := m.Ensure(t.Context(), Request{Ref: "x.io/a:1", Credentials: login("a", "p")})
		if broken != nil {
			require.ErrorContains(t, err, "no space")
		} else {
			require.NoError(t, err)
		}
		hidden(m, seen)
	}
}

// A record that a power failure or the disk has damaged does not make its image one for all pods.
func TestADamagedRecordMakesNoPreloadedImage(t *testing.T) {
	dir := t.TempDir()
	rt := fake.New(fake.Config{})
	m := New(rt.Images(), dir)
	require.NoError(t, m.Start(t.Context()))
	_, err := m.Ensure(t.Context(), Request{Ref: "x.io/a:1", Credentials: login("a", "p")})
	require.NoError(t, err)
	files, err := filepath.Glob(filepath.Join(dir, recordPrefix+"*"))
	require.NoError(t, err)
	require.Len(t, files, 1)
	require.NoError(t, os.WriteFile(files[0], nil, 0o600))
	for range 2 {
		m = New(rt.Images(), dir)
		require.NoError(t, m.Start(t.Context()))
		_, err = m.Ensure(t.Context(), Request{Ref: "x.io/a:1", Policy: corev1.PullNever})
		var e *Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, "ErrImageNeverPull", e.Reason)
	}
	for range 2 { // a pull makes it whole
		_, err = m.Ensure(t.Context(), Request{
			Ref: "x.io/a:1", Policy: corev1.PullIfNotPresent, Credentials: login("a", "p"),
		})
		require.NoError(t, err)
		m = New(rt.Images(), dir)
		require.NoError(t, m.Start(t.Context()))
		require.Empty(t, m.records.damaged)
	}
}

func TestRecordsAreBounded(t *testing.T) {
	r, err := OpenRecords(t.TempDir())
	require.NoError(t, err)
	for i := range 3 * maxSecrets {
		c := login(strings.Repeat("x", i+1), "p")()[0]
		require.NoError(t, r.begin().end("x.io/a:1", "sha256:a", &c))
		c = plugged(strings.Repeat("x", i+1), "p")()[0]
		require.NoError(t, r.begin().end("x.io/a:1", "sha256:a", &c))
	}
	require.Len(t, r.byID["sha256:a"].Repositories["x.io/a"].Secrets, maxSecrets)
	require.Len(t, r.byID["sha256:a"].Repositories["x.io/a"].Accounts, maxSecrets)
}

// A registry that blocks pulls blocks only its own pulls.
func TestSlowPullsMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		rt := fake.New(fake.Config{Images: []string{}, Pull: func(ctx context.Context, ref string) error {
			if strings.Contains(ref, "slow") {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}})
		m := New(rt.Images(), "")
		var all sync.WaitGroup
		for i := range 3 * PullsAtOnce {
			all.Go(func() { _, _ = m.Ensure(ctx, Request{Ref: "slow/" + strings.Repeat("x", i+1)}) })
		}
		synctest.Wait()
		began := time.Now()
		_, err := m.Ensure(t.Context(), Request{Ref: "fast"})
		require.NoError(t, err)
		require.LessOrEqual(t, time.Since(began), 3*slowTime)
		cancel()
		all.Wait()
		require.Empty(t, m.slots)
		require.Empty(t, m.slow)
	})
}

func TestBackOffsAndErrorsAreBounded(t *testing.T) {
	m := New(fake.New(fake.Config{Images: []string{}, Pull: func(context.Context, string) error {
		return errors.New(strings.Repeat("x", 1<<20))
	}}).Images(), "")
	for i := range 2*maxBackOffs + 100 {
		_, err := m.Ensure(t.Context(), Request{
			Ref: "x.io/a" + strings.Repeat("b", i%100) + "/" + strings.Repeat("c", i/100+1),
		})
		var e *Error
		require.ErrorAs(t, err, &e)
		require.Less(t, len(e.Message), 2*maxError)
	}
	require.LessOrEqual(t, len(m.back), 2*maxBackOffs+1)
}
