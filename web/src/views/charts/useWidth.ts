import { useEffect, useRef, useState, type RefObject } from 'react'

/** The width of a place in pixels, as it changes; `first` until it is known. */
export function useWidth<Place extends HTMLElement>(first: number): readonly [RefObject<Place | null>, number] {
  const place = useRef<Place>(null)
  const [width, setWidth] = useState(first)
  useEffect(() => {
    const element = place.current
    if (element === null) return
    const observer = new ResizeObserver(([entry]) => {
      if (entry !== undefined && entry.contentRect.width > 0) setWidth(Math.floor(entry.contentRect.width))
    })
    observer.observe(element)
    return () => observer.disconnect()
  }, [])
  return [place, width]
}
