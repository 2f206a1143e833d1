package store

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
)

// Snapshot writes a copy of the whole database, followed by its SHA-256 sum: the format that etcdutl snapshot restore
// reads.
func (s *Store) Snapshot(ctx context.Context, w io.Writer) error {
	e, err := s.ours()
	if err != nil {
		return err
	}
	if _, err := s.barrier(ctx); err != nil {
		return err
	}
	e.KV().Commit()
	snap := e.Backend().Snapshot()
	defer snap.Close()
	sum := sha256.New()
	if _, err := snap.WriteTo(contextWriter{ctx, io.MultiWriter(w, sum)}); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("snapshot of the store: %w", err)
	}
	if _, err := w.Write(sum.Sum(nil)); err != nil {
		return fmt.Errorf("snapshot of the store: %w", err)
	}
	return nil
}

type contextWriter struct {
	ctx context.Context
	w   io.Writer
}

func (c contextWriter) Write(b []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.w.Write(b)
}
