// Command hello is the server of the example image: it answers every request with its pod's name and the text of a
// file.
package main

import (
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

func main() {
	name := os.Getenv("POD_NAME")
	if name == "" {
		name, _ = os.Hostname()
	}
	file := "/etc/hello/message"
	if len(os.Args) > 1 {
		file = os.Args[1]
	}
	server := &http.Server{
		Addr: ":8080", ReadHeaderTimeout: 5 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			text, err := os.ReadFile(file) // read at each request: a mounted ConfigMap changes
			if err != nil {
				text = []byte("hello")
			}
			fmt.Fprintf(w, "%s: %s\n", name, strings.TrimSpace(string(text)))
		}),
	}
	stop := make(chan os.Signal, 1) // PID 1 of a namespace gets only signals that it handles
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		<-stop
		server.Close()
	}()
	log.Printf("%s serves on %s", name, server.Addr)
	if err := server.ListenAndServe(); err != http.ErrServerClosed {
		log.Fatal(err)
	}
}
