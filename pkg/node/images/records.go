package images

import (
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

// Records stores in a directory with which credentials images were pulled, so that only pods that could pull an image
// may use it when it is already on the node (KEP-2535, with upstream's default policy NeverVerifyPreloadedImages). Safe
// for concurrent use.
type Records struct {
	dir string

	mu    sync.Mutex
	byID  map[string]*record
	going map[string]int // pulls in progress, by reference
}

// Limits on records. Beyond them the oldest are removed, and pods pull again.
const (
	maxRecord     = 1 << 20 // bytes of a file
	maxSecrets    = 100     // of a repository in a record, as upstream; also of service accounts
	maxRecordRepo = 100     // repositories of an image
)

// record is how an image was pulled.
type record struct {
	// Image is its ID.
	Image string
	// Repositories are those from which it was pulled, with who may use it.
	Repositories map[string]*access
}

type access struct {
	// Public is true if it was pulled without a credential, or with one of the node's.
	Public   bool              `json:",omitempty"`
	Secrets  []keyring.Secret  `json:",omitempty"`
	Accounts []keyring.Account `json:",omitempty"`
}

// intent is written before a pull, so that an image whose pull was interrupted by a kill is not treated as preloaded.
type intent struct{ Ref string }

const (
	recordPrefix, intentPrefix = "image-", "pull-"
	recordSuffix               = ".json"
)

// OpenRecords reads the records in a directory, which it creates if necessary. Damaged files are removed.
func OpenRecords(dir string) (*Records, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	r := &Records{dir: dir, byID: map[string]*record{}, going: map[string]int{}}
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
		if err != nil {
			if err := os.Remove(path); err != nil {
				return nil, err
			}
		}
	}
	return r, nil
}

func (r *Records) take(name string, data []byte) error {
	switch {
	case strings.HasPrefix(name, recordPrefix):
		var rec record
		if err := json.Unmarshal(data, &rec); err != nil {
			return err
		}
		if rec.Image == "" || name != fileOf(recordPrefix, rec.Image) {
			return errors.New("a record of another image")
		}
		r.byID[rec.Image] = &rec
		return nil
	case strings.HasPrefix(name, intentPrefix):
		var i intent
		if err := json.Unmarshal(data, &i); err != nil {
			return err
		}
		r.going[i.Ref]++
		return nil
	}
	return errors.New("not a record")
}

func fileOf(prefix, key string) string { return prefix + keyring.Sum(key) + recordSuffix }

func (r *Records) write(name string, value any) error {
	return atomicfile.WriteJSON(filepath.Join(r.dir, name), value)
}

// begin is called before a pull.
func (r *Records) begin(ref string) error {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.going[ref]++; r.going[ref] > 1 {
		return nil
	}
	return r.write(fileOf(intentPrefix, ref), intent{ref})
}

// end is called after a pull. with is nil for one without a credential; id is empty for one that failed.
func (r *Records) end(ref, id string, with *keyring.Credential) error {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if id != "" {
		if err := r.allow(id, ref, with); err != nil {
			return err // the intent remains, so the image is not treated as preloaded
		}
	}
	if r.going[ref]--; r.going[ref] > 0 {
		return nil
	}
	delete(r.going, ref)
	err := os.Remove(filepath.Join(r.dir, fileOf(intentPrefix, ref)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// allow adds to an image's record. Called with the lock held.
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
	r.byID[id] = rec
	return r.write(fileOf(recordPrefix, id), rec)
}

// appended returns a list with one more, the oldest of too many left out.
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

// needsPull reports whether an image on the node must be pulled again before a pod may use it, to verify the pod's
// access. ask returns the pod's credentials for it.
func (r *Records) needsPull(ref string, img runtime.Image, ask func() []keyring.Credential) (bool, error) {
	if r == nil || img.Pinned { // loaded from a file for all pods
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
			if same || hash { // a rotated secret or a copy of it: record it
				r.mu.Lock()
				defer r.mu.Unlock()
				return false, r.allow(img.ID, ref, &c)
			}
		}
	}
	return true, nil
}

// allowed returns who may use an image without a pull: everyone, or those with one of the secrets or accounts. It
// returns false for an image that was pulled from another repository, or by a process that was killed before it
// recorded how.
func (r *Records) allowed(ref, id string) (public bool, may access, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec := r.byID[id]
	if rec == nil {
		return r.going[ref] == 0, access{}, false // preloaded images are for everyone
	}
	a := rec.Repositories[repositoryOf(ref)]
	if a == nil {
		return false, access{}, false
	}
	return a.Public, *a, true
}

// prune removes the records of images that are no longer on the node.
func (r *Records) prune(list []runtime.Image) error {
	if r == nil {
		return nil
	}
	have := map[string]bool{}
	for _, img := range list {
		have[img.ID] = true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.going) > 0 { // the list may not contain an image being pulled
		return nil
	}
	var errs []error
	for id := range r.byID {
		if have[id] {
			continue
		}
		if err := os.Remove(filepath.Join(r.dir, fileOf(recordPrefix, id))); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
			continue
		}
		delete(r.byID, id)
	}
	return errors.Join(errs...)
}

// recover completes the records of interrupted pulls: their images may be used only by pods that can pull them.
func (r *Records) recover(get func(ref string) (runtime.Image, error)) error {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	for ref := range r.going {
		img, err := get(ref)
		if err != nil && !errors.Is(err, runtime.ErrNotFound) {
			errs = append(errs, err)
			continue
		}
		if err == nil && r.byID[img.ID] == nil {
			rec := &record{Image: img.ID, Repositories: map[string]*access{}}
			if err := r.write(fileOf(recordPrefix, img.ID), rec); err != nil {
				errs = append(errs, err)
				continue
			}
			r.byID[img.ID] = rec
		}
		delete(r.going, ref)
		if err := os.Remove(filepath.Join(r.dir, fileOf(intentPrefix, ref))); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
