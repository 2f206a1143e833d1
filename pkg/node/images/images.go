// Package images pulls pods' images by their pull policy, with a back-off per image, and garbage-collects unused
// images.
//
// Its invariant: at any time there is at most one pull per reference and set of credentials, which concurrent
// requests share, and at most eight pulls that are not slow. Further pulls wait.
package images

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"sort"
	"sync"
	"time"

	"github.com/distribution/reference"
	corev1 "k8s.io/api/core/v1"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/node/images/keyring"
	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

const (
	// PullsAtOnce is the number of pulls that are not slow.
	PullsAtOnce = 8
	// KeepTime is how long after its last pull or request an image is kept.
	KeepTime = 2 * time.Minute
	// A pull that receives fewer than slowBytes in slowTime is slow, and frees its slot for another pull, so that a
	// slow registry does not block other pulls. At most maxSlow pulls are slow; further ones keep their slots.
	slowTime  = 5 * time.Second
	slowBytes = 256 << 10
	maxSlow   = 64

	maxBackOffs = 1000 // number of references, by namespace, with a back-off
	maxError    = 2048 // bytes of a registry's error in messages

	backOffFirst = 10 * time.Second
	backOffMax   = 5 * time.Minute
)

// Error says why an image is not available. Reason is the reason in the container's status.
type Error struct {
	Reason, Message string
	// Until is when to retry the pull; zero if only a change of the pod can help.
	Until time.Time
}

func (e *Error) Error() string { return e.Message }

// Request is a request for a container's image.
type Request struct {
	Ref    string
	Policy corev1.PullPolicy
	// Namespace is the pod's namespace. Back-off is per namespace: a failure for a namespace without credentials does
	// not delay pods of other namespaces.
	Namespace string
	// Credentials returns the pod's credentials for the image in the order to try them; it may be nil.
	Credentials func() []keyring.Credential
	// Event records an event for the container; it may be nil.
	Event func(kind, reason, message string)
}

// Manager manages the node's images. It is safe for concurrent use.
type Manager struct {
	images  runtime.Images
	dir     string
	records *Records // set by Start
	slots   chan struct{}
	slow    chan struct{}
	// Elsewhere returns the nodes that have an image; nil means unknown. Set it before the first Ensure.
	Elsewhere func(ref string) []string

	mu    sync.Mutex
	back  map[string]backOff
	pulls map[string]*pull
	used  map[string]time.Time // last request, by image ID
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

// New returns a Manager. It records in recordDir which credentials images were pulled with. If recordDir is empty,
// every pod may use every image on the node.
func New(images runtime.Images, recordDir string) *Manager {
	return &Manager{
		images: images, dir: recordDir, slots: make(chan struct{}, PullsAtOnce), slow: make(chan struct{}, maxSlow),
		back: map[string]backOff{}, pulls: map[string]*pull{}, used: map[string]time.Time{},
	}
}

// Start reads the records, and removes records of images that are gone. The runtime must be ready. Call Start before
// the first Ensure.
func (m *Manager) Start(ctx context.Context) error {
	if m.dir == "" {
		return nil
	}
	var err error
	if m.records, err = OpenRecords(m.dir); err != nil {
		return err
	}
	return m.records.prune(ctx, m.images)
}

// Ensure returns the image, and pulls it if the policy requires that. The error is an *Error unless ctx is done.
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
		r.Policy = policy
	}
	have, getErr := m.images.Get(ctx, r.Ref)
	if getErr == nil {
		m.touch(have.ID)
	}
	credentials := sync.OnceValue(func() []keyring.Credential {
		if r.Credentials == nil {
			return nil
		}
		return r.Credentials()
	})
	verify := false
	if getErr == nil && policy != corev1.PullAlways {
		if verify, err = m.records.needsPull(ref, have, credentials); err != nil {
			return runtime.Image{}, &Error{
				Reason:  "ImageInspectError",
				Message: err.Error(),
				Until:   time.Now().Add(backOffFirst),
			}
		}
	}
	switch {
	case verify && policy == corev1.PullNever:
		msg := fmt.Sprintf("Container image %q is present with pull policy of Never but does not have the proper "+
			"credentials to access the image", r.Ref)
		event(corev1.EventTypeWarning, "ErrImageNeverPull", msg)
		return runtime.Image{}, &Error{Reason: "ErrImageNeverPull", Message: msg}
	case getErr == nil && policy != corev1.PullAlways && !verify:
		event(corev1.EventTypeNormal, "Pulled",
			fmt.Sprintf("Container image %q already present on machine and can be accessed by the pod", r.Ref))
		return have, nil
	case policy == corev1.PullNever:
		msg := fmt.Sprintf("Container image %q is not present with pull policy of Never%s", r.Ref, m.hint(ref))
		event(corev1.EventTypeWarning, "ErrImageNeverPull", msg)
		return runtime.Image{}, &Error{Reason: "ErrImageNeverPull", Message: msg}
	case getErr != nil && !errors.Is(getErr, runtime.ErrNotFound):
		return runtime.Image{}, &Error{
			Reason:  "ImageInspectError",
			Message: getErr.Error(),
			Until:   time.Now().Add(backOffFirst),
		}
	}
	return m.pullNow(ctx, r, ref, credentials, event)
}

func (m *Manager) pullNow(ctx context.Context, r Request, ref string, credentials func() []keyring.Credential,
	event func(kind, reason, message string)) (runtime.Image, error) {
	backOffKey := r.Namespace + "/" + ref
	if b, waiting := m.waiting(backOffKey); waiting {
		msg := fmt.Sprintf("Back-off pulling image %q: %s", r.Ref, b.last)
		event(corev1.EventTypeNormal, "BackOff", fmt.Sprintf("Back-off pulling image %q", r.Ref))
		return runtime.Image{}, &Error{Reason: "ImagePullBackOff", Message: msg, Until: b.until}
	}
	event(corev1.EventTypeNormal, "Pulling", fmt.Sprintf("Pulling image %q", r.Ref))
	began := time.Now()
	img, err := m.pull(ctx, r.Ref, ref, credentials())
	if err == nil {
		m.pulled(backOffKey, img.ID)
		took := time.Since(began).Round(time.Millisecond)
		event(corev1.EventTypeNormal, "Pulled", fmt.Sprintf(
			"Successfully pulled image %q in %s (%s including waiting). Image size: %d bytes.", r.Ref, took, took, img.Size))
		return img, nil
	}
	if ctx.Err() != nil {
		return runtime.Image{}, ctx.Err()
	}
	why := bounded.Text(err.Error(), maxError) + cmp.Or(m.loaded(ctx, ref, r.Policy == corev1.PullAlways), m.hint(ref))
	b := m.failed(backOffKey, why)
	msg := fmt.Sprintf("Failed to pull image %q: %s", r.Ref, why)
	event(corev1.EventTypeWarning, "Failed", msg)
	event(corev1.EventTypeWarning, "Failed", "Error: ErrImagePull")
	return runtime.Image{}, &Error{Reason: "ErrImagePull", Message: msg, Until: b.until}
}

func (m *Manager) touch(id string) {
	m.mu.Lock()
	m.used[id] = time.Now()
	m.mu.Unlock()
}

func (m *Manager) pulled(key, id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.used[id] = time.Now()
	delete(m.back, key)
}

func (m *Manager) waiting(key string) (backOff, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b, ok := m.back[key]
	return b, ok && time.Now().Before(b.until)
}

func (m *Manager) failed(key, why string) backOff {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.back[key]
	if time.Now().Before(b.until) { // the shared pull failed for another container
		return b
	}
	b.wait = min(max(2*b.wait, backOffFirst), backOffMax)
	b.until, b.last = time.Now().Add(b.wait), why
	for k, old := range m.back {
		if len(m.back) < maxBackOffs {
			break
		}
		if len(m.back) > 2*maxBackOffs || time.Since(old.until) > backOffMax {
			delete(m.back, k)
		}
	}
	m.back[key] = b
	return b
}

func (m *Manager) pull(ctx context.Context, ref, key string, credentials []keyring.Credential) (runtime.Image, error) {
	name := key
	for _, c := range credentials {
		key += "\x00" + c.Key()
	}
	for {
		m.mu.Lock()
		p := m.pulls[key]
		if p == nil {
			p = &pull{done: make(chan struct{})}
			m.pulls[key] = p
			m.mu.Unlock()
			return m.lead(ctx, p, ref, name, key, credentials)
		}
		m.mu.Unlock()
		select {
		case <-ctx.Done():
			return runtime.Image{}, ctx.Err()
		case <-p.done:
		}
		if errors.Is(p.err, context.Canceled) && ctx.Err() == nil {
			continue // the request that led the pull was cancelled; take over
		}
		return p.image, p.err
	}
}

func (m *Manager) lead(ctx context.Context, p *pull, ref, name, key string,
	credentials []keyring.Credential) (runtime.Image, error) {
	select {
	case m.slots <- struct{}{}:
		l := &lane{m: m}
		stop := l.watch()
		p.image, p.err = m.fetch(ctx, ref, name, credentials, l.moved)
		stop()
	case <-ctx.Done():
		p.err = ctx.Err()
	}
	m.mu.Lock()
	delete(m.pulls, key)
	m.mu.Unlock()
	close(p.done)
	return p.image, p.err
}

// fetch tries the credentials in order, then none, and records the one that succeeded.
func (m *Manager) fetch(ctx context.Context, ref, name string, credentials []keyring.Credential,
	moved func(runtime.Progress)) (runtime.Image, error) {
	t := m.records.begin()
	observe := runtime.PullObserver{Progress: moved, Found: func(id string) error {
		_, err := m.images.Get(ctx, id)
		return t.found(id, err == nil)
	}}
	var errs []error
	for i := 0; i <= len(credentials); i++ {
		var with *keyring.Credential
		var auths []runtime.Auth
		if i < len(credentials) {
			with, auths = &credentials[i], []runtime.Auth{credentials[i].Auth}
		}
		img, err := m.images.Pull(ctx, ref, auths, observe)
		if err == nil {
			return img, t.end(name, img.ID, with)
		}
		errs = append(errs, err)
		if ctx.Err() != nil || errors.Is(err, runtime.ErrRefused) {
			break
		}
	}
	return runtime.Image{}, errors.Join(errs[0], t.end(name, "", nil), m.records.prune(ctx, m.images))
}

type lane struct {
	m *Manager

	mu    sync.Mutex
	bytes int64 // received so far
	slow  bool
	over  bool
}

func (l *lane) moved(p runtime.Progress) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bytes = p.Done
}

// watch checks the progress every slowTime, until the pull is slow or has ended.
func (l *lane) watch() (stop func()) {
	var last int64
	var timer *time.Timer
	l.mu.Lock()
	defer l.mu.Unlock()
	timer = time.AfterFunc(slowTime, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.over || l.slow {
			return
		}
		if l.bytes-last < slowBytes {
			select {
			case l.m.slow <- struct{}{}:
				l.slow = true
				<-l.m.slots
				return
			default: // all slow slots are taken: keep this one
			}
		}
		last = l.bytes
		timer.Reset(slowTime)
	})
	return func() {
		timer.Stop()
		l.mu.Lock()
		defer l.mu.Unlock()
		l.over = true
		if l.slow {
			<-l.m.slow
		} else {
			<-l.m.slots
		}
	}
}

// Excess returns how many bytes of images to remove so that low percent of a file system are used, if at least high
// percent are; otherwise 0. A high of 100 disables it.
func Excess(available, capacity int64, high, low int) int64 {
	if capacity <= 0 || high >= 100 || 100-int(float64(available)*100/float64(capacity)) < high {
		return 0
	}
	return max(capacity/100*int64(100-low)-available, 0)
}

// Collect removes unused images, least recently used first, until free bytes are freed. It keeps pinned images and
// images that were pulled or requested within KeepTime. inUse contains image IDs.
func (m *Manager) Collect(ctx context.Context, inUse map[string]bool, free int64) (int64, error) {
	list, err := m.images.List(ctx)
	if err != nil {
		return 0, err
	}
	last := make(map[string]time.Time, len(list))
	m.mu.Lock()
	for _, img := range list {
		last[img.ID] = m.used[img.ID]
	}
	maps.DeleteFunc(m.used, func(id string, _ time.Time) bool { _, here := last[id]; return !here })
	m.mu.Unlock()
	for _, img := range list {
		if img.Since.After(last[img.ID]) {
			last[img.ID] = img.Since
		}
	}
	sort.Slice(list, func(i, j int) bool { return last[list[i].ID].Before(last[list[j].ID]) })
	var freed int64
	errs := []error{m.records.prune(ctx, m.images)}
	for _, img := range list {
		if freed >= free {
			break
		}
		if inUse[img.ID] || img.Pinned || time.Since(last[img.ID]) < KeepTime {
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
