// Command guestbook is the program of the guestbook example: "guestbook store" keeps entries in a file, "guestbook
// store URL" replicates the store at URL, and "guestbook web" serves the page.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	handler, err := program(ctx, os.Args[1:])
	if err != nil {
		log.Fatal(err)
	}
	server := &http.Server{
		Addr:              ":8080",
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       30 * time.Second,
		Handler:           handler,
	}
	go func() {
		<-ctx.Done()
		_ = server.Close()
	}()
	log.Printf("%v serves on %s", os.Args[1:], server.Addr)
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		log.Fatal(err)
	}
}

func program(ctx context.Context, args []string) (http.Handler, error) {
	switch {
	case len(args) == 1 && args[0] == "store":
		return open("/data/entries")
	case len(args) == 2 && args[0] == "store":
		s := newStore()
		go s.follow(ctx, args[1])
		return s, nil
	case len(args) == 1 && args[0] == "web":
		return web{write: env("STORE", "http://guestbook-store"), read: env("REPLICAS", "http://guestbook-replicas")}, nil
	}
	return nil, fmt.Errorf("usage: guestbook store | guestbook store URL | guestbook web")
}

func env(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}
