// Package images gets a pod's images onto the node as its pull policy says,
// with one back-off per image, and collects those that nobody uses.
//
// It may import agent/runtime. Its invariant: one pull per reference at a
// time, whoever asks; at most eight pulls at once, the others wait.
package images

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"sync"
	"time"

	"github.com/distribution/reference"
	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/pkg/agent/runtime"
)

const (
	pullsAtOnce  = 8
	backOffFirst = 10 * time.Second
	backOffMax   = 5 * time.Minute
)

// Error says why an image is not there, with the reason that a container's status shows.
type Error struct {
	Reason, Message string
	// Until is when the next pull may be tried; zero if nothing but a change of the pod helps.
	Until time.Time
}

func (e *Error) Error() string { return e.Message }

// Request asks for one image for one container.
type Request struct {
	Ref    string
	Policy corev1.PullPolicy
	Auths  []runtime.Auth
	// Event records an event on the container; it may be nil.
	Event func(kind, reason, message string)
}

// Manager keeps the node's images. Safe for concurrent use.
type Manager struct {
	images runtime.Images
	slots  chan struct{}

	mu    sync.Mutex
	back  map[string]backOff
	pulls map[string]*pull
	used  map[string]time.Time // when an image was last asked for
}

type backOff struct {
	wait  time.Duration
	until time.Time
	last  string
}

type pull struct {
	done  chan struct{}
	image runtime.Image
	err   error
}

// New makes a Manager over the runtime's images.
func New(images runtime.Images) *Manager {
	return &Manager{images: images, slots: make(chan struct{}, pullsAtOnce),
		back: map[string]backOff{}, pulls: map[string]*pull{}, used: map[string]time.Time{}}
}

// Ensure returns the image, pulling it if the policy asks for it. Its error is an *Error unless ctx ended.
func (m *Manager) Ensure(ctx context.Context, r Request) (runtime.Image, error) {
	event := r.Event
	if event == nil {
		event = func(string, string, string) {}
	}
	named, err := reference.ParseDockerRef(r.Ref)
	if err != nil {
		msg := fmt.Sprintf("Failed to apply default image tag %q: couldn't parse image name %q: %v", r.Ref, r.Ref, err)
		event(corev1.EventTypeWarning, "InspectFailed", msg)
		return runtime.Image{}, &Error{Reason: "InvalidImageName", Message: msg}
	}
	ref := named.String()
	policy := r.Policy
	if policy == "" {
		policy = corev1.PullIfNotPresent
		if tagged, ok := named.(reference.Tagged); ok && tagged.Tag() == "latest" {
			policy = corev1.PullAlways
		}
	}
	have, getErr := m.images.Get(ctx, r.Ref)
	if getErr == nil {
		m.touch(have.ID)
	}
	switch {
	case getErr == nil && policy != corev1.PullAlways:
		event(corev1.EventTypeNormal, "Pulled", fmt.Sprintf("Container image %q already present on machine and can be accessed by the pod", r.Ref))
		return have, nil
	case policy == corev1.PullNever:
		msg := fmt.Sprintf("Container image %q is not present with pull policy of Never", r.Ref)
		event(corev1.EventTypeWarning, "ErrImageNeverPull", msg)
		return runtime.Image{}, &Error{Reason: "ErrImageNeverPull", Message: msg}
	case getErr != nil && !errors.Is(getErr, runtime.ErrNotFound):
		return runtime.Image{}, &Error{Reason: "ImageInspectError", Message: getErr.Error(), Until: time.Now().Add(backOffFirst)}
	}
	if b, waiting := m.waiting(ref); waiting {
		msg := fmt.Sprintf("Back-off pulling image %q: %s", r.Ref, b.last)
		event(corev1.EventTypeNormal, "BackOff", fmt.Sprintf("Back-off pulling image %q", r.Ref))
		return runtime.Image{}, &Error{Reason: "ImagePullBackOff", Message: msg, Until: b.until}
	}
	event(corev1.EventTypeNormal, "Pulling", fmt.Sprintf("Pulling image %q", r.Ref))
	began := time.Now()
	img, err := m.pull(ctx, r.Ref, ref, r.Auths)
	if err == nil {
		m.touch(img.ID)
		took := time.Since(began).Round(time.Millisecond)
		event(corev1.EventTypeNormal, "Pulled", fmt.Sprintf(
			"Successfully pulled image %q in %s (%s including waiting). Image size: %d bytes.", r.Ref, took, took, img.Size))
		return img, nil
	}
	if ctx.Err() != nil {
		return runtime.Image{}, ctx.Err()
	}
	b := m.failed(ref, err)
	msg := fmt.Sprintf("Failed to pull image %q: %v", r.Ref, err)
	event(corev1.EventTypeWarning, "Failed", msg)
	event(corev1.EventTypeWarning, "Failed", "Error: ErrImagePull")
	return runtime.Image{}, &Error{Reason: "ErrImagePull", Message: msg, Until: b.until}
}

func (m *Manager) touch(id string) {
	m.mu.Lock()
	m.used[id] = time.Now()
	m.mu.Unlock()
}

func (m *Manager) waiting(ref string) (backOff, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b, ok := m.back[ref]
	return b, ok && time.Now().Before(b.until)
}

func (m *Manager) failed(ref string, err error) backOff {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.back[ref]
	if time.Now().Before(b.until) { // another container's failure of the same pull
		return b
	}
	b.wait = min(max(2*b.wait, backOffFirst), backOffMax)
	b.until, b.last = time.Now().Add(b.wait), err.Error()
	m.back[ref] = b
	return b
}

func (m *Manager) pull(ctx context.Context, ref, key string, auths []runtime.Auth) (runtime.Image, error) {
	for _, a := range auths {
		key += "\x00" + a.Username + "\x00" + a.Password + a.Token
	}
	for {
		m.mu.Lock()
		p := m.pulls[key]
		if p == nil {
			p = &pull{done: make(chan struct{})}
			m.pulls[key] = p
			m.mu.Unlock()
			return m.lead(ctx, p, ref, key, auths)
		}
		m.mu.Unlock()
		select {
		case <-ctx.Done():
			return runtime.Image{}, ctx.Err()
		case <-p.done:
		}
		if errors.Is(p.err, context.Canceled) && ctx.Err() == nil {
			continue // whoever led gave up; take over
		}
		return p.image, p.err
	}
}

func (m *Manager) lead(ctx context.Context, p *pull, ref, key string, auths []runtime.Auth) (runtime.Image, error) {
	select {
	case m.slots <- struct{}{}:
		p.image, p.err = m.images.Pull(ctx, ref, auths, nil)
		<-m.slots
	case <-ctx.Done():
		p.err = ctx.Err()
	}
	m.mu.Lock()
	delete(m.pulls, key)
	if p.err == nil {
		for k := range m.back {
			if len(key) >= len(k) && key[:len(k)] == k {
				delete(m.back, k)
			}
		}
	}
	m.mu.Unlock()
	close(p.done)
	return p.image, p.err
}

// Excess is how many bytes of images to remove from a disk with so much capacity, of which high percent or more are in
// use, until low percent are; 0 if less is in use, or high is 100.
func Excess(available, capacity int64, high, low int) int64 {
	if capacity <= 0 || high >= 100 || 100-int(float64(available)*100/float64(capacity)) < high {
		return 0
	}
	return max(capacity/100*int64(100-low)-available, 0)
}

// Collect removes images that nobody uses, those longest unused first, until free bytes are given back. It
// leaves alone what is pinned, and what came or was asked for in the last two minutes. inUse holds image IDs.
func (m *Manager) Collect(ctx context.Context, inUse map[string]bool, free int64) (int64, error) {
	list, err := m.images.List(ctx)
	if err != nil {
		return 0, err
	}
	m.mu.Lock()
	last := make(map[string]time.Time, len(m.used))
	for k, v := range m.used {
		last[k] = v
	}
	m.mu.Unlock()
	for _, img := range list {
		if img.Since.After(last[img.ID]) {
			last[img.ID] = img.Since
		}
	}
	sort.Slice(list, func(i, j int) bool { return last[list[i].ID].Before(last[list[j].ID]) })
	var freed int64
	var errs []error
	for _, img := range list {
		if freed >= free {
			break
		}
		if inUse[img.ID] || img.Pinned || time.Since(last[img.ID]) < 2*time.Minute {
			continue
		}
		if err := m.images.Remove(ctx, img.ID); err != nil && !errors.Is(err, runtime.ErrNotFound) {
			errs = append(errs, err)
			continue
		}
		freed += img.Size
	}
	return freed, errors.Join(errs...)
}
