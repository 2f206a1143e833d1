// Package artifact reads and writes Bundles as OCI artifacts in registries.
//
// Its invariants: answers of a registry are limited in size and time; blobs are checked against their digest; and
// credentials are sent only to the registry and its https token server.
package artifact

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/remotes/docker/auth"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/bundle"
)

const (
	// Type is the artifactType of the manifests that Push writes.
	Type = "application/vnd.coracle.kontrol.bundle.v1"

	maxManifest = 1 << 20
	maxLayer    = bundle.MaxBytes // compressed
	maxLayers   = 32
	maxHeader   = 64 << 10
	maxConfig   = 64 << 10 // bytes of a docker configuration
	// silence is the timeout for the header of an answer. The whole answer may take four times that.
	silence      = 15 * time.Second
	maxRedirects = 5
)

// Credentials authenticate a user to a registry. The zero value is anonymous.
type Credentials struct{ Username, Password string }

// CredentialsOf returns the credentials in a docker configuration for the registry of a reference.
func CredentialsOf(config []byte, reference string) (Credentials, error) {
	if len(config) > maxConfig {
		return Credentials{}, fmt.Errorf("larger than %d bytes", maxConfig)
	}
	var c struct {
		Auths map[string]struct{ Username, Password, Auth string }
	}
	if err := json.Unmarshal(config, &c); err != nil {
		return Credentials{}, errors.New("not a docker configuration")
	}
	host, _, _ := strings.Cut(reference, "/")
	for name, a := range c.Auths {
		name, _, _ = strings.Cut(strings.TrimPrefix(strings.TrimPrefix(name, "https://"), "http://"), "/")
		if name != host {
			continue
		}
		if a.Auth == "" {
			return Credentials{a.Username, a.Password}, nil
		}
		text, err := base64.StdEncoding.DecodeString(a.Auth)
		user, password, ok := strings.Cut(string(text), ":")
		if err != nil || !ok {
			return Credentials{}, fmt.Errorf("the credentials for %s cannot be parsed", host)
		}
		return Credentials{user, password}, nil
	}
	return Credentials{}, fmt.Errorf("no credentials for %s", host)
}

// resolver returns a resolver for the registry of one artifact. Registries on localhost may use plain HTTP.
func resolver(c Credentials) remotes.Resolver {
	client := &http.Client{Transport: newTransport(), CheckRedirect: func(req *http.Request, via []*http.Request) error {
		if len(via) >= maxRedirects {
			return fmt.Errorf("stopped after %d redirects", maxRedirects)
		}
		if via[0].URL.Scheme == "https" && req.URL.Scheme != "https" {
			return fmt.Errorf("redirected from https to %s", req.URL.Scheme)
		}
		if req.URL.Host != via[0].URL.Host {
			req.Header.Del("Authorization")
		}
		return nil
	}}
	return docker.NewResolver(docker.ResolverOptions{Hosts: func(name string) ([]docker.RegistryHost, error) {
		list, err := docker.ConfigureDefaultRegistries(docker.WithPlainHTTP(docker.MatchLocalhost),
			docker.WithClient(client))(name)
		for i := range list {
			list[i].Authorizer = newAuthorizer(c, list[i].Scheme, list[i].Host)
		}
		return list, err
	}})
}

// authorizer answers the challenges of one registry, but not of hosts to which it redirects.
type authorizer struct {
	docker.Authorizer
	scheme, host string
}

func newAuthorizer(c Credentials, scheme, host string) docker.Authorizer {
	tokens := &http.Client{
		Transport: newTransport(), Timeout: silence, CheckRedirect: func(*http.Request, []*http.Request) error {
			return errors.New("token servers may not redirect")
		},
	}
	return authorizer{
		docker.NewDockerAuthorizer(docker.WithAuthClient(tokens),
			docker.WithAuthCreds(func(asking string) (string, string, error) {
				if asking != host {
					return "", "", nil
				}
				return c.Username, c.Password, nil
			})), scheme, host,
	}
}

func (a authorizer) Authorize(ctx context.Context, req *http.Request) error {
	if req.URL.Host != a.host {
		return nil
	}
	return a.Authorizer.Authorize(ctx, req)
}

func (a authorizer) AddResponses(ctx context.Context, responses []*http.Response) error {
	last := responses[len(responses)-1]
	if last.Request.URL.Host != a.host {
		return fmt.Errorf("%s, to which %s redirects, asks for credentials: %w", last.Request.URL.Host, a.host,
			docker.ErrInvalidAuthorization)
	}
	for _, c := range auth.ParseAuthHeader(last.Header) {
		if c.Scheme != auth.BearerAuth {
			continue
		}
		realm, err := url.Parse(c.Parameters["realm"])
		local, _ := docker.MatchLocalhost(a.host)
		if err != nil || realm.User != nil || realm.Host == "" ||
			realm.Scheme != "https" &&
				!(realm.Scheme == "http" && a.scheme == "http" && local && realm.Hostname() == hostname(a.host)) {
			return fmt.Errorf("%s names the token server %.200q, which is not an https URL: %w", a.host, c.Parameters["realm"],
				docker.ErrInvalidAuthorization)
		}
	}
	return a.Authorizer.AddResponses(ctx, responses)
}

func hostname(host string) string { return (&url.URL{Host: host}).Hostname() }

// transport limits the answers of registries in size and time.
type transport struct{ http.RoundTripper }

func newTransport() http.RoundTripper {
	t := docker.DefaultHTTPTransport(nil)
	t.MaxResponseHeaderBytes, t.ResponseHeaderTimeout, t.DisableKeepAlives = maxHeader, silence, true
	return transport{t}
}

func (t transport) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(req.Context())
	timer := time.AfterFunc(4*silence, cancel) // enough for an answer of the maximum size
	res, err := t.RoundTripper.RoundTrip(req.WithContext(ctx))
	if err != nil {
		timer.Stop()
		cancel()
		return nil, err
	}
	res.Request = req
	res.Body = &body{bounded.Reader(res.Body, maxLayer+1), res.Body, func() { timer.Stop(); cancel() }}
	return res, nil
}

type body struct {
	io.Reader
	from io.Closer
	end  func()
}

func (b *body) Close() error {
	defer b.end()
	return b.from.Close()
}

// Resolve returns the current digest of a reference.
func Resolve(ctx context.Context, reference string, c Credentials) (string, error) {
	_, d, err := resolver(c).Resolve(quiet(ctx), reference)
	if err != nil {
		return "", explain(reference, err)
	}
	return d.Digest.String(), nil
}

// quiet stops the library from logging errors that it also returns.
func quiet(ctx context.Context) context.Context {
	return log.WithLogger(ctx, &log.Entry{Logger: zero(log.L.Logger)}) // a new Logger logs only panics
}

func zero[T any](*T) *T { return new(T) }

func explain(reference string, err error) error {
	if errdefs.IsNotFound(err) {
		return fmt.Errorf("there is no artifact %s", reference)
	}
	return fmt.Errorf("artifact %s: %w", reference, err)
}

// Fetch returns an artifact's files with documents, only those in dir if that is not empty, and the artifact's digest.
func Fetch(ctx context.Context, reference, dir string, c Credentials) (files []bundle.File, dig string, err error) {
	ctx = quiet(ctx)
	r := resolver(c)
	name, d, err := r.Resolve(ctx, reference)
	if err != nil {
		return nil, "", explain(reference, err)
	}
	from, err := r.Fetcher(ctx, name)
	if err != nil {
		return nil, "", explain(reference, err)
	}
	raw, err := blob(ctx, from, d, maxManifest)
	if err != nil {
		return nil, "", explain(reference, err)
	}
	var m ocispec.Manifest
	if err := json.Unmarshal(raw, &m); err != nil || len(m.Layers) == 0 {
		return nil, "", fmt.Errorf("artifact %s is not a manifest with layers: is it an index of platforms?", reference)
	}
	if len(m.Layers) > maxLayers {
		return nil, "", fmt.Errorf("artifact %s has more than %d layers", reference, maxLayers)
	}
	left := bundle.MaxBytes
	for i, l := range m.Layers {
		got, err := layer(ctx, from, l, i, dir)
		if err != nil {
			return nil, "", explain(reference, err)
		}
		for _, f := range got {
			if left -= len(f.Data); left < 0 || len(files) == bundle.MaxFiles {
				return nil, "", fmt.Errorf("artifact %s has more than %d bytes or %d files", reference, bundle.MaxBytes,
					bundle.MaxFiles)
			}
			files = append(files, f)
		}
	}
	return files, d.Digest.String(), nil
}

// layer returns the files of a layer: an archive, or a single document named by its title annotation.
func layer(ctx context.Context, from remotes.Fetcher, l ocispec.Descriptor, number int,
	dir string) ([]bundle.File, error) {
	isTar, isGzip := strings.HasSuffix(l.MediaType, "tar"), strings.HasSuffix(l.MediaType, "tar+gzip") ||
		strings.HasSuffix(l.MediaType, "tar.gzip")
	isText := strings.HasSuffix(l.MediaType, "yaml") || strings.HasSuffix(l.MediaType, "json")
	if !isTar && !isGzip && !isText {
		return nil, fmt.Errorf("layer %d has the media type %.100q: tar, tar+gzip, yaml and json are read", number,
			l.MediaType)
	}
	raw, err := blob(ctx, from, l, maxLayer)
	if err != nil {
		return nil, fmt.Errorf("layer %d: %w", number, err)
	}
	if isText {
		name := l.Annotations[ocispec.AnnotationTitle]
		if name == "" || len(name) > 256 {
			name = fmt.Sprintf("layer %d", number)
		}
		if dir != "" && !strings.HasPrefix(name, dir+"/") {
			return nil, nil
		}
		return []bundle.File{{Name: name, Data: raw}}, nil
	}
	return bundle.Untar(bytes.NewReader(raw), isGzip, dir)
}

// blob reads a blob of at most most bytes and verifies its digest.
func blob(ctx context.Context, from remotes.Fetcher, d ocispec.Descriptor, most int64) ([]byte, error) {
	if d.Size < 0 || d.Size > most {
		return nil, fmt.Errorf("%d bytes, at most %d are allowed", d.Size, most)
	}
	if err := d.Digest.Validate(); err != nil {
		return nil, fmt.Errorf("invalid digest: %w", err)
	}
	d.URLs = nil
	body, err := from.Fetch(ctx, d)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	raw, err := bounded.All(body, most)
	if err != nil {
		return nil, err
	}
	if got := d.Digest.Algorithm().FromBytes(raw); got != d.Digest {
		return nil, fmt.Errorf("the content has the digest %s, not %s", got, d.Digest)
	}
	return raw, nil
}

// Push writes files as an artifact and returns its digest. Equal files give equal artifacts.
func Push(ctx context.Context, reference string, files []bundle.File, c Credentials) (string, error) {
	var archive bytes.Buffer
	if err := bundle.Tar(&archive, files); err != nil {
		return "", err
	}
	layer := ocispec.Descriptor{
		MediaType: ocispec.MediaTypeImageLayerGzip,
		Digest:    digest.FromBytes(archive.Bytes()),
		Size:      int64(archive.Len()),
	}
	empty := ocispec.DescriptorEmptyJSON
	raw, err := json.Marshal(ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, ArtifactType: Type,
		Config: ocispec.Descriptor{MediaType: empty.MediaType, Digest: empty.Digest, Size: empty.Size},
		Layers: []ocispec.Descriptor{layer},
	})
	if err != nil {
		return "", err
	}
	manifest := ocispec.Descriptor{
		MediaType: ocispec.MediaTypeImageManifest,
		Digest:    digest.FromBytes(raw),
		Size:      int64(len(raw)),
	}
	ctx = quiet(ctx)
	to, err := resolver(c).Pusher(ctx, reference)
	if err != nil {
		return "", explain(reference, err)
	}
	for _, b := range []struct {
		ocispec.Descriptor
		data []byte
	}{{layer, archive.Bytes()}, {empty, []byte("{}")}, {manifest, raw}} {
		d := b.Descriptor
		d.Data = nil
		w, err := to.Push(ctx, d)
		if errdefs.IsAlreadyExists(err) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("pushing to %s: %w", reference, err)
		}
		if _, err = w.Write(b.data); err == nil {
			err = w.Commit(ctx, d.Size, d.Digest)
		}
		_ = w.Close()
		if err != nil && !errdefs.IsAlreadyExists(err) {
			return "", fmt.Errorf("pushing to %s: %w", reference, err)
		}
	}
	return manifest.Digest.String(), nil
}
