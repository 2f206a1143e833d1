package images

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/distribution/reference"

	"github.com/coracle-dev/coracle/pkg/base/atomicfile"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/node/images/keyring"
	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

// Records stores which credentials images were pulled with, so that an image on the node is usable only for pods that
// could pull it (KEP-2535 with the default policy NeverVerifyPreloadedImages). It is safe for concurrent use.
type Records struct {
	dir string

	mu    sync.Mutex
	byID  map[string]*record
	going map[string]int // pulls in progress, by ID of an image that they found
	// damaged are the names of unreadable records. Their images were pulled, so that pods must pull them again.
	damaged map[string]bool
}

// Limits of records. Beyond maxSecrets the oldest are removed, and their pods pull again.
const (
	maxRecord     = 1 << 20 // bytes of a file
	maxSecrets    = 100     // secrets, and service accounts, per repository, as in the kubelet
	maxRecordRepo = 100     // repositories per image
)

type record struct {
	Image string
	// Repositories are the repositories from which it was pulled, with the access to each.
	Repositories map[string]*access
}

type access struct {
	// Public means that it was pulled without a credential or with the node's.
	Public   bool              `json:",omitempty"`
	Secrets  []keyring.Secret  `json:",omitempty"`
	Accounts []keyring.Account `json:",omitempty"`
}

const recordPrefix, recordSuffix = "image-", ".json"

// OpenRecords reads the records in a directory, and creates the directory if necessary. It removes damaged files,
// except records of images.
func OpenRecords(dir string) (*Records, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	r := &Records{dir: dir, byID: map[string]*record{}, going: map[string]int{}, damaged: map[string]bool{}}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		data, err := bounded.File(path, maxRecord)
		if err == nil {
			err = r.take(e.Name(), data)
		}
		if err == nil {
			continue
		}
		if strings.HasPrefix(e.Name(), recordPrefix) && strings.HasSuffix(e.Name(), recordSuffix) {
			r.damaged[e.Name()] = true
		} else if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func (r *Records) take(name string, data []byte) error {
	var rec record
	if err := json.Unmarshal(data, &rec); err != nil {
		return err
	}
	if rec.Image == "" || name != fileOf(rec.Image) {
		return errors.New("a record of another image")
	}
	r.byID[rec.Image] = &rec
	return nil
}

func fileOf(id string) string { return recordPrefix + keyring.Sum(id) + recordSuffix }

// transfer is a pull in progress. Its images have records from before they are in the store, so that at no time, also
// not after a crash, a pulled image counts as preloaded.
type transfer struct {
	r   *Records
	ids map[string]bool
}

func (r *Records) begin() *transfer { return &transfer{r, map[string]bool{}} }

// found records an image that only pods with later recorded access may use. An image that is present without a record
// stays preloaded.
func (t *transfer) found(id string, present bool) error {
	if t.r == nil {
		return nil
	}
	t.r.mu.Lock()
	defer t.r.mu.Unlock()
	if !t.ids[id] {
		t.ids[id] = true
		t.r.going[id]++
	}
	if present || t.r.byID[id] != nil {
		return nil
	}
	return t.r.store(&record{Image: id, Repositories: map[string]*access{}})
}

// end is called after the pull. with is nil for a pull without a credential, id is empty for a failed pull.
func (t *transfer) end(ref, id string, with *keyring.Credential) (err error) {
	if t.r == nil {
		return nil
	}
	t.r.mu.Lock()
	defer t.r.mu.Unlock()
	if id != "" {
		err = t.r.allow(id, ref, with)
	}
	for one := range t.ids {
		if t.r.going[one]--; t.r.going[one] == 0 {
			delete(t.r.going, one)
		}
	}
	return err
}

// allow adds access to an image's record. Called with the lock held.
func (r *Records) allow(id, ref string, with *keyring.Credential) error {
	repository := repositoryOf(ref)
	rec := r.byID[id]
	if rec == nil {
		rec = &record{Image: id, Repositories: map[string]*access{}}
	}
	a := rec.Repositories[repository]
	if a == nil {
		if len(rec.Repositories) >= maxRecordRepo {
			return fmt.Errorf("image %s was pulled from more than %d repositories", id, maxRecordRepo)
		}
		a = &access{}
	}
	next := *a
	switch {
	case with == nil || with.Everyones():
		next.Public = true
	case with.Account != keyring.Account{}:
		next.Accounts = appended(a.Accounts, with.Account)
	default:
		next.Secrets = appended(a.Secrets, with.Secret)
	}
	a = &next
	rec.Repositories[repository] = a
	return r.store(rec)
}

// store is durable: an image whose record is lost in a power failure would count as preloaded. Called with the lock
// held.
func (r *Records) store(rec *record) error {
	data, err := json.Marshal(rec)
	if err == nil {
		err = atomicfile.WriteDurably(filepath.Join(r.dir, fileOf(rec.Image)), data)
	}
	if err != nil {
		return err
	}
	r.byID[rec.Image] = rec
	delete(r.damaged, fileOf(rec.Image))
	return nil
}

// appended returns the list with one more element, without the oldest if there are more than maxSecrets.
func appended[T comparable](list []T, one T) []T {
	if slices.Contains(list, one) {
		return list
	}
	list = append(slices.Clone(list), one)
	return list[max(len(list)-maxSecrets, 0):]
}

func repositoryOf(ref string) string {
	if named, err := reference.ParseNormalizedNamed(ref); err == nil {
		return named.Name()
	}
	return ref
}

// needsPull reports whether a pod has to pull a present image to verify its access with the credentials of ask.
func (r *Records) needsPull(ref string, img runtime.Image, ask func() []keyring.Credential) (bool, error) {
	if r == nil || img.Pinned { // pinned images were loaded from a file for all pods
		return false, nil
	}
	public, may, known := r.allowed(ref, img.ID)
	if public || !known {
		return !public, nil
	}
	for _, c := range ask() {
		if slices.Contains(may.Accounts, c.Account) {
			return false, nil
		}
		if c.Secret == (keyring.Secret{}) {
			continue
		}
		for _, s := range may.Secrets {
			same := s.UID == c.Secret.UID && s.Namespace == c.Secret.Namespace && s.Name == c.Secret.Name
			hash := s.Hash != "" && s.Hash == c.Secret.Hash
			if same && hash {
				return false, nil
			}
			if same || hash { // a rotated secret or a copy of one: record it
				r.mu.Lock()
				defer r.mu.Unlock()
				return false, r.allow(img.ID, ref, &c)
			}
		}
	}
	return true, nil
}

// allowed returns who may use an image without a pull. known is false if no pull of the image from this repository
// succeeded; then public says whether it was preloaded.
func (r *Records) allowed(ref, id string) (public bool, may access, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec := r.byID[id]
	if rec == nil {
		return !r.damaged[fileOf(id)], access{}, false // preloaded images are public
	}
	a := rec.Repositories[repositoryOf(ref)]
	if a == nil {
		return false, access{}, false
	}
	return a.Public, *a, true
}

// prune removes the records of images that are gone. It lists the images with the lock held, because the list must have
// each image whose pull has ended.
func (r *Records) prune(ctx context.Context, images runtime.Images) error {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	list, err := images.List(ctx)
	if err != nil {
		return err
	}
	have, files := map[string]bool{}, map[string]bool{}
	for _, img := range list {
		have[img.ID], files[fileOf(img.ID)] = true, true
	}
	var errs []error
	for file := range r.damaged {
		if !files[file] {
			delete(r.damaged, file)
			errs = append(errs, os.Remove(filepath.Join(r.dir, file)))
		}
	}
	for id := range r.byID {
		if have[id] || r.going[id] > 0 {
			continue
		}
		if err := os.Remove(filepath.Join(r.dir, fileOf(id))); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
			continue
		}
		delete(r.byID, id)
	}
	return errors.Join(errs...)
}
