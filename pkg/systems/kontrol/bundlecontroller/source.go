package bundlecontroller

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/backoff"
	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/artifact"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/bundle"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/readable"
)

const (
	// patience is the timeout of one fetch. fetches limits concurrent fetches.
	patience = time.Minute
	fetches  = 4
	// The pause after a failure grows from failFirst to failMost, give or take half.
	failFirst = 5 * time.Second
	failMost  = 5 * time.Minute
	// budget limits the cached objects of all Bundles, in bytes. The least recently used are dropped, and read again
	// when needed.
	budget = 64 << 20
)

// Fetcher reads artifacts as package artifact does.
type Fetcher interface {
	// Resolve returns the digest of a reference.
	Resolve(ctx context.Context, reference string, c artifact.Credentials) (string, error)
	// Fetch returns the files in dir of an artifact (all if dir is empty), and the artifact's digest.
	Fetch(ctx context.Context, reference, dir string, c artifact.Credentials) ([]bundle.File, string, error)
}

// Registries reads artifacts from registries.
type Registries struct{}

func (Registries) Resolve(ctx context.Context, reference string, c artifact.Credentials) (string, error) {
	return artifact.Resolve(ctx, reference, c)
}

func (Registries) Fetch(ctx context.Context, reference, dir string,
	c artifact.Credentials) ([]bundle.File, string, error) {
	return artifact.Fetch(ctx, reference, dir, c)
}

// result is a Bundle's content. objects and err are nil during the first fetch. With objects, an error means that they
// may be outdated.
type result struct {
	objects []bundle.Object
	content string
	digest  string
	err     error
}

type sources struct {
	engine.Env
	fetch Fetcher
	slots chan struct{}
	in    readable.Namespaces

	mu sync.Mutex
	of map[string]*source // by Bundle
}

type source struct {
	key string // identifies the source and its version
	result
	size     int
	used     time.Time
	next     time.Time // of the next registry request; zero if there is none
	failures int
	running  bool
}

func newSources(env engine.Env, f Fetcher, in readable.Namespaces) *sources {
	return &sources{Env: env, fetch: f, slots: make(chan struct{}, fetches), in: in, of: map[string]*source{}}
}

func (s *sources) forget(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.of, name)
}

// look returns a Bundle's content as far as it is known. It starts a fetch if one is due, but does not wait for it.
func (s *sources) look(ctx context.Context, b *kontrol.Bundle) result {
	src := &b.Spec.Source
	var got result
	switch {
	case src.Artifact != nil:
		return s.artifact(ctx, b)
	case src.ConfigMap != nil:
		ref := src.ConfigMap
		if err := s.in.Check("ConfigMap", ref.Namespace, ref.Name); err != nil {
			return result{err: err}
		}
		var m corev1.ConfigMap
		err := s.Cache.Get(ctx, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, &m)
		if apierrors.IsNotFound(err) {
			return result{err: fmt.Errorf("there is no ConfigMap %s in namespace %s: create it", ref.Name, ref.Namespace)}
		}
		if err != nil {
			return result{err: err}
		}
		got = s.parsed(b, string(m.UID)+m.ResourceVersion, func() []bundle.File { return filesOf(&m) })
	default:
		got = s.parsed(b, fmt.Sprint(b.UID, b.Generation), func() []bundle.File {
			return []bundle.File{{Name: "spec.source.inline", Data: []byte(src.Inline)}}
		})
	}
	return stamped(got, b)
}

// stamped returns a result with the digest of its content.
func stamped(r result, b *kontrol.Bundle) result {
	if r.objects != nil {
		r.content = bundle.Digest(r.objects, &b.Spec)
	}
	return r
}

func filesOf(m *corev1.ConfigMap) (files []bundle.File) {
	for _, k := range slices.Sorted(maps.Keys(m.Data)) {
		files = append(files, bundle.File{Name: k, Data: []byte(m.Data[k])})
	}
	return files
}

// parsed returns the objects of files. It calls files and parses them only if the key has changed.
func (s *sources) parsed(b *kontrol.Bundle, key string, files func() []bundle.File) result {
	s.mu.Lock()
	is := s.of[b.Name]
	s.mu.Unlock()
	if is != nil && is.key == key && (is.objects != nil || is.err != nil) {
		return is.result
	}
	next := &source{key: key}
	next.objects, next.err = bundle.Parse(files())
	s.keep(b.Name, next)
	return next.result
}

// keep caches a content, and drops the least recently used objects of other Bundles beyond the budget.
func (s *sources) keep(name string, next *source) {
	for i := range next.objects {
		next.size += len(next.objects[i].JSON)
	}
	next.used = s.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.of[name] = next
	total := 0
	for _, is := range s.of {
		total += is.size
	}
	for total > budget {
		var oldest *source
		for _, is := range s.of {
			if is != next && is.size > 0 && !is.running && (oldest == nil || is.used.Before(oldest.used)) {
				oldest = is
			}
		}
		if oldest == nil {
			return
		}
		total -= oldest.size
		oldest.objects, oldest.size, oldest.key = nil, 0, ""
	}
}

// artifact returns the known content of an artifact, and starts to read its registry again if that is due.
func (s *sources) artifact(ctx context.Context, b *kontrol.Bundle) result {
	a := b.Spec.Source.Artifact
	credentials, version, err := s.credentials(ctx, a)
	if err != nil {
		return result{err: err}
	}
	sum := sha256.Sum256([]byte(a.Reference + "\x00" + a.Path + "\x00" + version))
	key := hex.EncodeToString(sum[:])
	now := s.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	is := s.of[b.Name]
	if is == nil || is.key != key {
		is = &source{key: key, next: now}
		s.of[b.Name] = is
	}
	is.used = now
	if !is.running && !is.next.IsZero() && !now.Before(is.next) {
		is.running = true
		was, name, spec := is.result, b.Name, *a
		s.Go(func(ctx context.Context) { s.read(ctx, name, key, spec, credentials, was) })
	}
	return stamped(is.result, b)
}

func (s *sources) credentials(ctx context.Context,
	a *kontrol.Artifact) (c artifact.Credentials, version string, err error) {
	ref := a.PullSecret
	if ref == nil {
		return c, "", nil
	}
	if err := s.in.Check("Secret", ref.Namespace, ref.Name); err != nil {
		return c, "", err
	}
	var secret corev1.Secret
	if err := s.Cache.Get(ctx, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, &secret); err != nil {
		if apierrors.IsNotFound(err) {
			err = fmt.Errorf("there is no Secret %s in namespace %s: create it with a docker configuration under the key %s",
				ref.Name, ref.Namespace, ref.Key)
		}
		return c, "", err
	}
	if c, err = artifact.CredentialsOf(secret.Data[ref.Key], a.Reference); err != nil {
		return c, "", fmt.Errorf("key %s of Secret %s in namespace %s: %w", ref.Key, ref.Name, ref.Namespace, err)
	}
	return c, secret.ResourceVersion, nil
}

// read resolves the artifact's digest, and fetches the artifact if the digest has changed.
func (s *sources) read(ctx context.Context, name, key string, a kontrol.Artifact, c artifact.Credentials, was result) {
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	next := was
	recorded := false
	defer func() { // a panic counts as a failure, so that the next read waits
		if !recorded {
			next.err = errors.New("the artifact could not be read: see the server's log")
			s.fetched(name, key, &a, next)
		}
	}()
	next.err = nil
	digest := ""
	if was.objects != nil {
		digest, next.err = s.fetch.Resolve(ctx, a.Reference, c)
	}
	if next.err == nil && (was.objects == nil || digest != was.digest) {
		var files []bundle.File
		if files, digest, next.err = s.fetch.Fetch(ctx, a.Reference, a.Path, c); next.err == nil {
			var objects []bundle.Object
			if objects, next.err = bundle.Parse(files); next.err == nil {
				next.objects, next.digest = objects, digest
			} else {
				next.objects, next.err = nil, fmt.Errorf("artifact %s: %w", digest, next.err)
			}
		}
	}
	if next.err != nil && errors.Is(ctx.Err(), context.Canceled) {
		recorded = true
		return // the process is stopping
	}
	recorded = true
	s.fetched(name, key, &a, next)
}

// fetched records the result of a fetch and schedules the next one. References with a digest are fetched once.
func (s *sources) fetched(name, key string, a *kontrol.Artifact, got result) {
	s.mu.Lock()
	is := s.of[name]
	if is == nil || is.key != key {
		s.mu.Unlock()
		return // the Bundle has changed meanwhile
	}
	failures := is.failures
	s.mu.Unlock()
	next := &source{key: key, result: got}
	var wait time.Duration
	switch {
	case got.err != nil:
		next.failures = failures + 1
		wait = backoff.Jittered(backoff.Pause(failFirst, failMost, next.failures))
	case !strings.Contains(a.Reference, "@"):
		wait = a.Interval.Duration
	}
	if wait > 0 {
		next.next = s.Now().Add(wait)
		s.Enqueue(engine.RequestFor("", name), wait+time.Millisecond)
	}
	s.keep(name, next)
	s.Enqueue(engine.RequestFor("", name), 0)
}
